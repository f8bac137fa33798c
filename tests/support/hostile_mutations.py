"""Ways to spoil a learner's folder, drawn by a seed: damage, forgery, and other kinds of file."""

import os
import random
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from support import hostile_fields, hostile_json, hostile_objects, hostile_specials

Files = Mapping[Path, bytes]
Write = Callable[[Path], None]
"""Spoils the learner in a folder."""
DOCUMENTS = (Path("versions/0001.json"), Path("versions/0002.json"))
NEWEST = DOCUMENTS[-1]
UPDATE = Path("pending/update.json")


@final
@dataclass(frozen=True)
class Mutant:
    """Which one: its kind, what it is in words, and what draws it again."""

    kind: str
    what: str
    seed: str


@final
@dataclass(frozen=True)
class Spoilt:
    """A mutant, how it is made, and whether an update meets what is spoilt."""

    mutant: Mutant
    write: Write
    updates: bool


def spoil(files: Files, seed: int, number: int) -> Spoilt:
    """Draw the mutant of a number; the specials come first.

    Args:
        files: what the sound learner's files hold.
        seed: of all mutants.
        number: from 0.
    """
    special = hostile_specials.SPECIALS[number : number + 1]
    if special:
        what, make = special[0]
        return Spoilt(Mutant("special", what, str(number)), writing(make(files)), updates=False)
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 - no secret
    kinds = [kind for kind, (weight, _) in KINDS.items() for _ in range(weight)]
    kind = rng.choice(kinds)
    what, write = KINDS[kind][1](rng, files)
    return Spoilt(Mutant(kind, what, f"{seed}/{number}"), write, updates=kind.startswith("update"))


def writing(changes: Mapping[Path, bytes | None]) -> Write:
    """Write files, in place of what is there; none removes one."""

    def write(model: Path) -> None:
        for name, data in changes.items():
            if data is None:
                (model / name).unlink()
            elif isinstance(data, hostile_specials.Vast):
                with (model / name).open("wb") as file:
                    file.truncate(10**12)
            else:
                (model / name).write_bytes(data)

    return write


def _small_files(files: Files) -> list[Path]:
    return [name for name in files if name.suffix == ".json" and name != UPDATE]


def _live_objects(files: Files) -> list[Path]:
    """Objects of the version in use: the others are read by nobody."""
    hashes = {ref["sha256"] for ref in hostile_objects.refs(files[NEWEST]).values()}
    return [hostile_objects.object_path(sha256) for sha256 in sorted(hashes)]


def damaged(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    """Damage some bytes as disks and careless hands do."""
    size = len(data)
    at, count = rng.randrange(max(1, size)), rng.choice((1, 1, 2, 8, 512, 10_000))
    noise = rng.randbytes(count)
    how = rng.choice(
        ("cut", "flipped", "inserted", "deleted", "zeroed", "noise", "repeated", "none")
    )
    if how == "cut":
        return f"cut at {at}", data[:at]
    if how == "flipped":
        twin = bytearray(data or b"\0")
        for _ in range(min(count, 8)):
            twin[rng.randrange(len(twin))] ^= 1 << rng.randrange(8)
        return f"{min(count, 8)} bits flipped", bytes(twin)
    middle = {"inserted": noise + data[at : at + count], "noise": noise, "deleted": b""}
    middle |= {"zeroed": bytes(len(data[at : at + count])), "repeated": data[at : at + count] * 2}
    if how == "none":
        return "nothing left", b""
    return f"{count} bytes {how} at {at}", data[:at] + middle[how] + data[at + count :]


def _damaged_json(rng: random.Random, files: Files) -> tuple[str, Write]:
    name = rng.choice(_small_files(files))
    how, data = damaged(rng, files[name])
    return f"{name}: {how}", writing({name: data})


def _damaged_object(rng: random.Random, files: Files) -> tuple[str, Write]:
    name = rng.choice(_live_objects(files))
    how, data = damaged(rng, files[name])
    while data == files[name]:
        how, data = damaged(rng, files[name])
    return f"{name}: {how}", writing({name: data})


def _damaged_unused(rng: random.Random, files: Files) -> tuple[str, Write]:
    used = {*_live_objects(files), *_small_files(files)}
    name = rng.choice([n for n in files if n not in used and n.parts[0] != "pending"])
    how, data = damaged(rng, files[name])
    return f"{name}: {how}", writing({name: data})


def _forged_json(rng: random.Random, files: Files) -> tuple[str, Write]:
    name = rng.choice((Path("model.json"), Path("current.json"), *DOCUMENTS, *[NEWEST] * 4))
    how, data = hostile_json.forged(rng, files[name])
    return f"{name}: {how}", writing({name: data})


def _forged_field(rng: random.Random, files: Files) -> tuple[str, Write]:
    name = rng.choice((DOCUMENTS[0], *[NEWEST] * 5))
    how, data = hostile_fields.forged(rng, files[name])
    return f"{name}: {how}", writing({name: data})


def _forged_object(rng: random.Random, files: Files) -> tuple[str, Write]:
    document = rng.choice((DOCUMENTS[0], *[NEWEST] * 5))
    how, changes = hostile_objects.spoilt(rng, files, document)
    return how, writing(changes)


def _swapped_refs(rng: random.Random, files: Files) -> tuple[str, Write]:
    tree, _ = hostile_json.parsed(files[NEWEST])
    one, two = rng.sample(list(hostile_objects.refs(files[NEWEST])), 2)
    twin = hostile_json.replaced(tree, one, hostile_json.find(tree, two))
    if rng.random() < 0.5:
        twin = hostile_json.replaced(twin, two, hostile_json.find(tree, one))
    return f"{one} and {two} exchanged", writing({NEWEST: hostile_json.dumps(twin)})


def _other_layout(rng: random.Random, files: Files) -> tuple[str, Write]:
    name = rng.choice((*files, *(Path(folder) for folder in ("objects", "versions", "pending"))))
    kind = rng.choice(sorted(KINDS_OF_FILE))
    return f"{name} is {kind}", lambda model: replace(model / name, kind)


def _extra_entries(rng: random.Random, files: Files) -> tuple[str, Write]:
    names = [
        rng.choice(
            (
                "versions/0003.json",
                "versions/٠٠٠٣.json",
                "versions/00002.json",
                "versions/0000.json",
                "versions/999999999.json",
                "versions/1000000000.json",
                "versions/-001.json",
                "versions/.grace-unfinished-0123456789abcdef0123456789abcdef",
                "versions/0001.json~",
                "objects/x.safetensors",
                f"objects/{'0' * 64}.safetensors",
                f"objects/{'F' * 64}.safetensors",
                ".grace-unfinished-fedcba9876543210fedcba9876543210",
                "notes.txt",
                "a\nb",
                "\x1b[31m",
                "pickle.pkl",
                "conftest.py",
                "sitecustomize.py",
            )
        )
        for _ in range(rng.randint(1, 3))
    ]
    data = rng.choice((b"", b"{}", files[NEWEST], rng.randbytes(100)))
    return f"{names} with {data!r:.30}", writing({Path(name): data for name in names})


def replace(path: Path, kind: str) -> None:
    """Put something of another kind in a path's place."""
    kept = path.with_name(f"{path.name}.kept")
    if path.exists():
        path.rename(kept)
    KINDS_OF_FILE[kind](path, kept)


def _remove(path: Path, kept: Path) -> None:
    shutil.rmtree(kept) if kept.is_dir() else kept.unlink()


def _socket(path: Path, kept: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # A socket's path may have a hundred characters.
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


def _sparse(path: Path, kept: Path) -> None:
    with path.open("wb") as file:
        file.truncate(50 * 10**9)


def _deep(path: Path, kept: Path) -> None:
    path.joinpath(*["d"] * 60).mkdir(parents=True)


KINDS_OF_FILE: Mapping[str, Callable[[Path, Path], object]] = {
    "missing": _remove,
    "a link to a system file": lambda path, kept: path.symlink_to("/etc/passwd"),
    "a link to itself": lambda path, kept: path.symlink_to(path.name),
    "a link to nothing": lambda path, kept: path.symlink_to("nothing/at/all"),
    "a link to what it was": lambda path, kept: path.symlink_to(kept.name),
    "a link to a file elsewhere": lambda path, kept: path.symlink_to(
        _outside(path) / "secret.json"
    ),
    "a link to a folder elsewhere": lambda path, kept: path.symlink_to(_outside(path)),
    "a link to the root": lambda path, kept: path.symlink_to("/"),
    "a pipe": lambda path, kept: os.mkfifo(path),
    "a folder": lambda path, kept: path.mkdir(),
    "a deep folder": _deep,
    "a file": lambda path, kept: path.write_text("{}"),
    "an empty file": lambda path, kept: path.touch(),
    "a socket": _socket,
    "50 GB of nothing": _sparse,
    "a second name of a file elsewhere": lambda path, kept: path.hardlink_to(
        _outside(path) / "secret.json"
    ),
    "a device": lambda path, kept: path.symlink_to("/dev/zero"),
}


def _outside(path: Path) -> Path:
    model = path.parent if path.parent.name == "model" else path.parent.parent
    return model.parent / "outside"


def _pending(rng: random.Random, files: Files) -> tuple[str, Write]:
    """Spoil an unfinished update."""
    names = [name for name in files if name.parts[0] in ("pending", "lock")]
    name = rng.choice(names)
    if name == UPDATE and rng.random() < 0.5:
        how, data = hostile_json.forged(rng, files[name])
    elif name.suffix == ".safetensors" and rng.random() < 0.7:
        how, data = _forged_entry(rng, files[name])
    elif rng.random() < 0.5:
        kind = rng.choice(sorted(KINDS_OF_FILE))
        target = rng.choice((name, Path("pending")))
        return f"{target} is {kind}", lambda model: replace(model / target, kind)
    else:
        how, data = damaged(rng, files[name])
    return f"{name}: {how}", writing({name: data})


def _forged_entry(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    """Forge an entry of the journal; its digest is right half of the time."""
    text, pieces = hostile_objects.read_entry(data)
    what = "tensors"
    if rng.random() < 0.5 or not pieces:
        how, entry = hostile_json.forged(rng, text.encode())
        what, text = "entry", entry.decode("utf-8", "replace")
    else:
        how, pieces = rng.choice(hostile_objects.OPERATIONS)(rng, pieces)
    right = rng.random() < 0.5
    forged = hostile_objects.write_entry(text, pieces, right=right)
    return f"{what}: {how}, digest {'right' if right else 'wrong'}", forged


def _purge(rng: random.Random, files: Files) -> tuple[str, Write]:
    """Leave an unfinished purge behind."""
    sound = hostile_json.dumps({"class": rng.choice(("class 0", "class 1", "class 3", "class 9"))})
    how, data = rng.choice(
        (
            ("sound", sound),
            hostile_json.forged(rng, sound),
            damaged(rng, sound),
            ("a list", b'["class 0"]'),
        )
    )
    changes = {Path("purge.json"): data}
    if rng.random() < 0.3:
        name = rng.choice(DOCUMENTS)
        more, changes[name] = hostile_json.forged(rng, files[name])
        how = f"{how}, and {name}: {more}"
    return f"purge.json: {how}", writing(changes)


KINDS: Mapping[str, tuple[int, Callable[[random.Random, Files], tuple[str, Write]]]] = {
    "damaged document": (14, _damaged_json),
    "damaged object": (12, _damaged_object),
    "damaged unused file": (1, _damaged_unused),
    "forged document": (36, _forged_json),
    "forged field": (36, _forged_field),
    "forged object": (30, _forged_object),
    "exchanged objects": (4, _swapped_refs),
    "other kind of file": (10, _other_layout),
    "extra entries": (3, _extra_entries),
    "update: forged journal": (4, _pending),
    "update: forged purge": (2, _purge),
}
