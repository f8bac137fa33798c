"""Ways to spoil a learner's files as hypothesis draws them, and what must become of each.

Describing, loading and asking a spoilt learner gives one clear error, or a sound answer where the
spoilt part does not matter. It never crashes, hangs, takes much memory, touches a file elsewhere,
or runs anything.
"""

import hashlib
import json
import os
import resource
import shutil
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, final

import numpy as np
import safetensors.numpy
from hypothesis import strategies as st

from grace.learner.document import Document, parse
from grace.learner.learner import Learner
from support.commands import call
from support.hostile_model import PROBE, Model, looks, update

Files = Mapping[str, bytes]
Write = Callable[[Path], None]
"""Spoils the learner in a folder."""
Tensors = dict[str, np.ndarray[Any, Any]]
OLDEST, NEWEST, CREATION = "versions/0001.json", "versions/0002.json", "model.json"

# --- Bytes and JSON -------------------------------------------------------------------------------

# Texts that stand for what json.dumps never writes.
RAW = {
    "@too large@": "1e999",
    "@long@": "1" * 5_000,
    "@deep@": "[" * 100 + "]" * 100,
    "@deeper@": "[" * 100_000 + "]" * 100_000,
    "@bad escape@": '"\\x"',
    "@nothing@": "",
}
TWICE = "@twice@"
VALUES = (
    *(None, True, False, 0, 1, -1, 7, 2**31, 2**63, 10**9, 10**19, 10**30, 0.5, -0.0, 1e-9, 1e9),
    *(1e308, 5e-324, float("nan"), float("inf"), *RAW, "", " ", "1", "linear", "class 1"),
    *("x" * 101, "x" * 100_000, "../outside/secret", "/etc/passwd", "a\0b", "\x1b[31mred\n"),
    *("\ud800", "\u202eabc", "\u0301" * 20_000, [], {}, [[]], [0] * 1000, [None], {"": {}}),
    *({"\x1b[2J\n": 1}, {"0": 1}, {"9": 0.5}, {str(number): number for number in range(2000)}),
)


def written(value: Any) -> bytes:
    """Write a forged value, bad as it is."""
    text = json.dumps(value, separators=(",", ":"))
    for name, raw in RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text.replace(TWICE, "").encode()


def places(value: Any, at: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """List every place of a tree."""
    yield at
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            yield from places(inner, (*at, key))


def find(value: Any, at: tuple[str | int, ...]) -> Any:
    """Return what stands at a place."""
    for key in at:
        value = value[key]
    return value


def near(old: Any) -> tuple[Any, ...]:
    """Values of the same kind that look right."""
    if isinstance(old, bool):
        return (not old,)
    if isinstance(old, int | float):
        return (old + 1, old - 1, -old, old * 10**6, old * 1e300, float(old), str(old))
    if isinstance(old, str):
        return (old.upper(), old + "\n", old * 2, old[:-1], old[::-1], f"../{old}", [old])
    if isinstance(old, list):
        return (old[:-1], old * 2, old[::-1], [old], dict(enumerate(old)))
    if isinstance(old, dict):
        return (dict(list(old.items())[:-1]), {**old, "new": 1}, [*old], [*old.items()])
    return (0, 1.0, "linear")


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """Bytes as disks and careless hands leave them; never the same."""
    at, count = draw(st.integers(0, len(data) - 1)), draw(st.sampled_from((1, 2, 8, 512, 10_000)))
    middle = data[at : at + count]
    how = draw(st.sampled_from(("cut", "bit", "inserted", "deleted", "zeroed", "repeated", "none")))
    if how in ("cut", "none"):
        return data[: at if how == "cut" else 0]
    new = {"deleted": b"", "zeroed": bytes(len(middle)), "repeated": middle * 2}
    new |= {"bit": bytes([middle[0] ^ 1 << count % 8]) + middle[1:]}
    new |= {"inserted": draw(st.binary(min_size=1, max_size=9)) + middle}
    spoilt = data[:at] + new[how] + data[at + count :]
    return spoilt if spoilt != data else data + b"\0"


@st.composite
def forged(draw: st.DrawFn, data: bytes) -> bytes:
    """A document of which one place is something else, has another name, or is there twice."""
    tree = json.loads(data)
    everywhere = list(places(tree))
    at = draw(st.sampled_from(everywhere[1:]))
    parent, key, old = find(tree, at[:-1]), at[-1], find(tree, at)
    how = draw(st.sampled_from(("value", "value", "near", "near", "other", "goes", "twice", "new")))
    if how == "value":
        parent[key] = draw(st.sampled_from(VALUES))
    elif how == "near":
        parent[key] = draw(st.sampled_from(near(old)))
    elif how == "other":
        parent[key] = json.loads(json.dumps(find(tree, draw(st.sampled_from(everywhere)))))
    elif isinstance(parent, list):
        parent[:] = [] if how == "goes" else parent * 2
    elif how == "goes":
        del parent[key]
    elif how == "twice":
        parent[f"{key}{TWICE}"] = draw(st.sampled_from((old, None, *near(old))))
    else:
        parent[draw(st.sampled_from((f"{key}2", "\x1b[2J\n", "../x", "-1", "", "9" * 19)))] = old
        if draw(st.booleans()):
            del parent[key]
    return written(tree)


# --- Tensors --------------------------------------------------------------------------------------


def object_path(sha256: str) -> str:
    return f"objects/{sha256}.safetensors"


def refs(document: bytes) -> dict[tuple[str | int, ...], dict[str, Any]]:
    """List where a sound document refers to objects, and to which."""
    tree = json.loads(document)
    nodes = ((at, find(tree, at)) for at in places(tree))
    return {at: n for at, n in nodes if isinstance(n, dict) and {"sha256", "bytes"} <= n.keys()}


def exchange(files: Files, old: str, data: bytes, document: str = NEWEST) -> dict[str, bytes]:
    """Put another object in one's place, named after what it holds, and named so by a document."""
    sha256 = hashlib.sha256(data).hexdigest()
    tree = json.loads(files[document])
    for ref in (find(tree, at) for at in refs(files[document])):
        if ref["sha256"] == old:
            ref.update(sha256=sha256, bytes=len(data))
    return {object_path(sha256): data, document: written(tree)}


def with_header(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Change the header of a file of tensors."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = change(data[8:start].rstrip())
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[start:]


OTHER_FORMS: tuple[Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]], ...] = (
    np.transpose,
    np.ravel,
    lambda t: t[None],
    lambda t: t[..., None],
    lambda t: np.zeros((0, *t.shape[1:]), t.dtype),
    lambda t: np.repeat(t[None] if t.ndim == 0 else t, 3, 0),
    *(lambda t, own=own: t.astype(own) for own in ("f8", "f2", "i8", "i4", "u1", "?")),
)
NUMBERS = (np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -1.0, 0.0, 1e20, 1e10)


@st.composite
def forged_tensors(draw: st.DrawFn, found: Tensors) -> bytes:
    """A sound file of tensors, of which one has another form, name or content."""
    name, other = draw(st.sampled_from(sorted(found))), draw(st.sampled_from(sorted(found)))
    how = draw(st.sampled_from(("form", "form", "number", "number", "name", "swap", "all", "none")))
    made = {own: tensor.copy() for own, tensor in found.items()}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if how == "form":
            made[name] = draw(st.sampled_from(OTHER_FORMS))(made[name])
        elif how == "number":
            part = ... if draw(st.booleans()) else (0,) * made[name].ndim
            number = np.float64(draw(st.sampled_from(NUMBERS)))
            made[name][part] = number.astype(made[name].dtype)
        elif how == "name":
            new = draw(st.sampled_from((f"{name}2", "", "\x1b[2J\n", "x" * 10**5, "../x")))
            made[new] = made[name]
            if draw(st.booleans()):
                del made[name]
        elif how == "swap":
            made[name], made[other] = made[other], made[name]
        elif how == "all":
            factor = draw(st.sampled_from((1e30, -1.0, 0.0, 1e-40)))
            made = {n: (t * factor).astype(t.dtype) for n, t in made.items()}
        else:
            made = {}
    return safetensors.numpy.save({n: np.ascontiguousarray(t) for n, t in made.items()})


@st.composite
def forged_object(draw: st.DrawFn, files: Files) -> Write:
    """An object that its document names rightly, and that is not what it should be."""
    document = draw(st.sampled_from((OLDEST, NEWEST, NEWEST, NEWEST)))
    live = {own["sha256"] for own in refs(files[document]).values()}
    sha256 = draw(st.sampled_from(sorted(live)))
    data = files[object_path(sha256)]
    made = draw(forged_tensors(safetensors.numpy.load(data)))
    how = draw(st.sampled_from(("tensors",) * 4 + ("header", "header", "length", "more")))
    if how == "header":
        header = draw(forged(data[8 : 8 + int.from_bytes(data[:8], "little")]))
        made = with_header(data, lambda _: header)
    elif how == "length":
        made = draw(st.sampled_from((0, 1, 2**31, 2**63, 2**64 - 1))).to_bytes(8, "little")
        made += data[8:]
    elif how == "more":
        made = data + bytes(draw(st.sampled_from((1, 4096))))
    return writing(exchange(files, sha256, made, document))


def read_entry(data: bytes) -> tuple[str, Tensors]:
    """Take an entry of the journal apart: what it says, and its tensors."""
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return header["__metadata__"]["entry"], safetensors.numpy.load(data)


def write_entry(text: str, bare: bytes, *, right: bool) -> bytes:
    """Put an entry together again, with its right digest or a wrong one."""
    digest = hashlib.sha256(text.encode("utf-8", "replace") + bare).hexdigest() if right else "0"
    metadata = {"__metadata__": {"entry": text, "sha256": digest}}
    return with_header(bare, lambda header: json.dumps(metadata | json.loads(header)).encode())


# --- Files ----------------------------------------------------------------------------------------


def writing(changes: Mapping[str, bytes | int | None]) -> Write:
    """Write files in place of what is there: bytes, so many of nothing, or no file."""

    def write(model: Path) -> None:
        for name, data in changes.items():
            if data is None:
                (model / name).unlink()
            else:
                (model / name).write_bytes(data if isinstance(data, bytes) else b"")
            if isinstance(data, int):
                os.truncate(model / name, data)

    return write


def replace(path: Path, kind: str) -> None:
    """Put something of another kind in a path's place."""
    kept = path.with_name(f"{path.name}.kept")
    if os.path.lexists(path):
        path.rename(kept)
    KINDS_OF_FILE[kind](path, kept, path.parents[path.parent.name != "model"].parent / "outside")


def _missing(path: Path, kept: Path, outside: Path) -> None:
    shutil.rmtree(kept) if kept.is_dir() and not kept.is_symlink() else kept.unlink()


def _socket(path: Path, kept: Path, outside: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # A socket's path may have a hundred characters.
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


KINDS_OF_FILE: Mapping[str, Callable[[Path, Path, Path], object]] = {
    "missing": _missing,
    "a link to a system file": lambda path, *_: path.symlink_to("/etc/passwd"),
    "a link to itself": lambda path, *_: path.symlink_to(path.name),
    "a link to nothing": lambda path, *_: path.symlink_to("nothing/at/all"),
    "a link to what it was": lambda path, kept, _: path.symlink_to(kept.name),
    "a link to a file elsewhere": lambda path, _, out: path.symlink_to(out / "secret.json"),
    "a link to a folder elsewhere": lambda path, _, out: path.symlink_to(out),
    "a link to the root": lambda path, *_: path.symlink_to("/"),
    "a device": lambda path, *_: path.symlink_to("/dev/zero"),
    "a pipe": lambda path, *_: os.mkfifo(path),
    "a socket": _socket,
    "a folder": lambda path, *_: path.mkdir(),
    "a deep folder": lambda path, *_: path.joinpath(*["d"] * 60).mkdir(parents=True),
    "a file": lambda path, *_: path.write_text("{}"),
    "an empty file": lambda path, *_: path.touch(),
    "50 GB of nothing": lambda path, *_: (path.touch(), os.truncate(path, 50 * 10**9)),
    "a second name of a file elsewhere": lambda path, _, out: path.hardlink_to(out / "secret.json"),
}
NEW_NAMES = (
    *("versions/0003.json", "versions/٠٠٠٣.json", "versions/00002.json", "versions/0000.json"),
    *("versions/1000000000.json", "versions/-001.json", "versions/0001.json~", "notes.txt"),
    *(f"versions/.grace-unfinished-{'0' * 32}", f"objects/{'F' * 64}.safetensors", "a\nb"),
    *("objects/x.safetensors", "\x1b[31m", "pickle.pkl", "conftest.py", "sitecustomize.py"),
)


@st.composite
def other_layout(draw: st.DrawFn, files: Files, below: str = "") -> Write:
    """Entries that are of another kind, missing, new, or what another one was."""
    folders = ("versions", "objects", "pending", "change.json")
    names = [name for name in (*files, *folders) if name.startswith(below)]
    kinds = ("what another was", "new", *KINDS_OF_FILE)
    act = st.tuples(st.sampled_from(names), st.sampled_from(kinds), st.sampled_from(sorted(files)))
    acts = draw(st.lists(act, min_size=1, max_size=3))
    new = draw(st.sampled_from(NEW_NAMES))

    def write(model: Path) -> None:
        for name, kind, source in acts:
            with suppress(OSError):  # It is no place for a file now.
                if kind == "new":
                    (model / new).write_bytes(files[source])
                elif kind == "what another was":
                    (model / name).write_bytes(files[source])
                elif kind != "missing" or os.path.lexists(model / name):
                    replace(model / name, kind)

    return write


@st.composite
def unfinished(draw: st.DrawFn, files: Files) -> Write:
    """An unfinished update or change that is damaged, or lies."""
    change = {"kind": "forget", "date": "", "class_names": ["class 3"], "versions": [1, 2]}
    kinds = {"kind": draw(st.sampled_from(("forget", "prune", "rollback", "set")))}
    given = {**files, "change.json": written(change | kinds)}
    name = draw(st.sampled_from([n for n in given if n.startswith(("pending", "change"))]))
    data = draw(damaged(given[name]) if draw(st.booleans()) else st.just(given[name]))
    if name.endswith(".json") and draw(st.booleans()):
        data = draw(forged(given[name]))
    elif name.endswith(".safetensors") and draw(st.booleans()):
        text, tensors = read_entry(files[name])
        bare, right = safetensors.numpy.save(tensors), draw(st.booleans())
        if tensors and draw(st.booleans()):
            bare = draw(forged_tensors(tensors))
        else:
            text = draw(forged(text.encode())).decode("utf-8", "replace")
        data = write_entry(text, bare, right=right)
    return writing({name: data})


@cache
def with_all_fields(document: bytes) -> bytes:
    """Write a version's document with the fields that have their default, to be attacked too."""
    if b'"history"' not in document:
        return document
    return written(parse(Document, document, "it").model_dump(mode="json"))


def changed(
    wanted: Callable[[Files], list[str]], how: Callable[[bytes], st.SearchStrategy[bytes]]
) -> Callable[[Files], st.SearchStrategy[Write]]:
    """Change the content of one of some files."""
    return lambda files: st.sampled_from(wanted(files)).flatmap(
        lambda name: how(files[name]).map(lambda data: writing({name: data}))
    )


def live(files: Files) -> list[str]:
    """Objects of the version in use: nobody reads the others."""
    return sorted({object_path(ref["sha256"]) for ref in refs(files[NEWEST]).values()})


def documents(files: Files) -> list[str]:
    return [OLDEST, CREATION, "current.json", NEWEST, NEWEST, NEWEST]


BOTH = {"refused", "answered"}
KINDS: Mapping[str, tuple[int, Callable[[Files], st.SearchStrategy[Write]], set[str]]] = {
    "damaged document": (
        20,
        changed(lambda files: ["history.jsonl", *documents(files)], damaged),
        BOTH,
    ),
    "damaged object": (12, changed(live, damaged), {"refused"}),
    "forged document": (65, changed(documents, lambda data: forged(with_all_fields(data))), BOTH),
    "forged object": (35, forged_object, BOTH),
    "other layout": (30, other_layout, BOTH),
    "unfinished": (15, unfinished, BOTH),
}
"""How many of a kind are drawn in the suite, how, and what becomes of them: every object is known
by its hash, but other values of many fields and weights are as good."""


# --- What must not happen -------------------------------------------------------------------------

# Work of another kind than reading and writing files: never any part of it.
RUNS = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "subprocess.", "socket.", "pickle.")
LIMIT = 10
"""Processor seconds."""
MEMORY = 1 << 30
"""More bytes of address space than before."""


class TooSlowError(BaseException):
    """The time is over; no handler of errors may take it for one."""


@final
class Guard:
    """Notes what is opened elsewhere, and run. One per process: audit hooks stay."""

    def __init__(self) -> None:
        source = Path(__file__).parents[2]
        roots = (sys.prefix, sys.base_prefix, *sys.path, source / "src", source / "tests")
        self._libraries = tuple({os.path.realpath(root) for root in roots})
        self._wrong: list[str] | None = None
        self._model = ""
        sys.addaudithook(self._hear)

    @contextmanager
    def watching(self, model: Path, seconds: float = LIMIT) -> Iterator[list[str]]:
        """Watch some work on a learner: gives the list of what it does wrong, by which it grows."""

        def stop(*_: object) -> None:
            raise TooSlowError

        wrong: list[str] = []
        before = signal.signal(signal.SIGPROF, stop)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        self._model = os.path.realpath(model)
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, -1))
        signal.setitimer(signal.ITIMER_PROF, seconds)
        self._wrong = wrong
        try:
            yield wrong
        except TooSlowError:
            wrong.append(f"took more than {seconds:g} s")
        finally:
            self._wrong = None
            signal.setitimer(signal.ITIMER_PROF, 0)
            resource.setrlimit(resource.RLIMIT_AS, (-1, -1))
            signal.signal(signal.SIGPROF, before)

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._wrong is None:
            return
        wrong, self._wrong = self._wrong, None  # What follows is not the work's.
        if event.startswith(RUNS) or (
            event == "exec" and not self._is_library(arguments[0].co_filename)
        ):
            wrong.append(f"{event}{arguments!r:.300}")
        elif event in ("open", "os.listdir", "os.scandir") and not isinstance(arguments[0], int):
            name = os.fsdecode(arguments[0])
            real = os.path.realpath(name)
            # A bare name is in a folder that is being removed, of which the event does not tell.
            is_there = "/" in name or os.path.lexists(name)
            if is_there and not f"{real}/".startswith(f"{self._model}/"):
                wrong.extend([f"{event}: {name!r}"] * (not self._is_library(real)))
        self._wrong = wrong

    def _is_library(self, path: str) -> bool:
        return path.startswith((*self._libraries, "/proc", "/sys", "/dev/null"))


@final
class Examiner:
    """Asks spoilt learners everything that their files could spoil."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.guard = Guard()
        self.said: str | None = None
        """The last error, if the learner was refused."""
        # What is imported late is imported now, and opens libraries.
        from torchvision.models import get_model  # noqa: F401

        with suppress(ImportError):
            import timm  # noqa: F401
        for ask in (describe, predict, predict_updated):
            ask(model.path)
        model.restore()
        assert self.examine(writing({}), updates=True) == {"answered"}

    def examine(self, write: Write, *, updates: bool = False) -> set[str]:
        """Spoil the learner, ask it, and put it back: tell how it ended, "refused" or "answered".

        Raises:
            AssertionError: if anything happened that must not.
        """
        path = self.model.path
        try:
            write(path)
            before, outside = looks(path), looks(self.model.outside)
            found = {self._ask(ask) for ask in (describe, predict)}
            assert looks(path) == before, "reading has changed the model"
            if updates:
                found.add(self._ask(predict_updated))
            assert looks(self.model.outside) == outside, "a file elsewhere has changed"
        finally:
            self.model.restore()
        return {"refused"} & found or {"answered"}

    def _ask(self, ask: Callable[[Path], None]) -> str:
        path = self.model.path
        with self.guard.watching(path) as wrong:
            self.said = message = refusal(lambda: ask(path))
        assert not wrong, (ask, wrong)
        if message is None:
            return "answered"
        assert message.isprintable(), message[:300]
        assert 10 < len(message) < 1_000, message[:300]
        assert str(path) in message, message
        return "refused"


def refusal(ask: Callable[[], object]) -> str | None:
    """Return the message of an error that people may get; none where there is no error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ask()
    except (ValueError, OSError) as error:
        return str(error)
    return None


def describe(path: Path) -> None:
    """Print what ``grace info`` and ``grace history`` print."""
    for verb in ("info", "history"):
        result = call(verb, path)
        assert all(map(str.isprintable, result.output.splitlines())), result.output
        if result.exit_code:
            assert result.stderr.startswith("error: "), result.stderr
            raise ValueError(result.stderr.removeprefix("error: ").removesuffix("\n"))


def predict(path: Path) -> None:
    """Load a learner and ask it about two images."""
    check_answers(Learner.load(path))


def predict_updated(path: Path) -> None:
    """Load a learner, finish its update, and ask it."""
    learner = Learner.load(path)
    update(learner)
    check_answers(learner)


def check_answers(learner: Learner) -> None:
    """Answers have the right shape and are probabilities."""
    found = learner.predict_proba(PROBE)
    assert found.shape == (2, len(learner.class_names)), found.shape
    assert bool(((found.sum(dim=1) - 1).abs() < 1e-4).all()), found
    for name, own in learner.scores(PROBE).items():
        assert own.shape == found.shape, name
        assert bool(own.isfinite().all()), name
    with suppress(ValueError):
        learner.unknown(PROBE, 0.4)
