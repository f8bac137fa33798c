"""Damaged and forged learners get one clear error, or a sound answer (``support/hostile.py``)."""

import hashlib
import json
import os
import runpy
import socket
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from multiprocessing.reduction import ForkingPickler as Pickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings

from grace.learner.learner import Learner
from support import hostile
from support.hostile import CREATION, NEWEST, Files, Tensors, find, refusal, writing, written
from support.hostile_model import PROBE, Model, update

TIMES = int(os.environ.get("GRACE_HOSTILE", "1"))
"""So many times as many mutants as usual, which are 200."""


@pytest.fixture(scope="module")
def examiner(sound_model: Model) -> hostile.Examiner:
    return hostile.Examiner(sound_model)


@pytest.mark.timeout(240 * TIMES)
@pytest.mark.parametrize("kind", hostile.KINDS)
def test_a_spoilt_learner_is_refused_or_answers(examiner: hostile.Examiner, kind: str) -> None:
    number, spoils, expected = hostile.KINDS[kind]
    outcomes: Counter[str] = Counter()

    @hypothesis_settings(
        max_examples=number * TIMES,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(spoils(examiner.model.files))
    def examine(write: hostile.Write) -> None:
        outcomes.update(examiner.examine(write, updates=kind == "unfinished"))

    examine()
    assert outcomes.keys() == expected


# --- Forgeries made on purpose: each aims at one weak place ---------------------------------------

Forge = Callable[[Files], Mapping[str, bytes | int | None]]


def document(*changes: tuple[str, Any], name: str = NEWEST, new: Mapping[str, Any] = {}) -> Forge:
    """Set fields of a document, each named by its path with slashes; further files are new."""

    def make(files: Files) -> Mapping[str, bytes | int | None]:
        tree = json.loads(files[name])
        for path, value in changes:
            *parents, last = path.split("/")
            find(tree, tuple(parents))[last] = value
        return {name: written(tree), **new}

    return make


def unlearnt(*changes: tuple[str, Any]) -> Forge:
    """Set fields of ``model.json``, where no version is in use."""
    return document(*changes, name=CREATION, new={"current.json": None})


def edited(edit: Callable[[Any], object], new: Mapping[str, Any] = {}) -> Forge:
    """Edit the newest document as a tree; further files are new."""

    def make(files: Files) -> Mapping[str, bytes | int | None]:
        tree = json.loads(files[NEWEST])
        edit(tree)
        return {NEWEST: written(tree), **new}

    return make


def text(old: bytes, new: bytes) -> Forge:
    """Change the newest document as text."""
    return lambda files: {NEWEST: files[NEWEST].replace(old, new, 1)}


def whole(make: Callable[[], bytes | int], name: str = NEWEST) -> Forge:
    """Be anything, made when it is wanted."""
    return lambda files: {name: make()}


def part(what: str, change: Callable[[Tensors], object]) -> Forge:
    """Change the tensors of one of the newest version's objects; all hashes are right."""

    def make(files: Files) -> Mapping[str, bytes | int | None]:
        sha256 = find(json.loads(files[NEWEST]), tuple(what.split("/")))["sha256"]
        tensors = safetensors.numpy.load(files[hostile.object_path(sha256)])
        change(tensors)
        return {**hostile.exchange(files, sha256, safetensors.numpy.save(tensors))}

    return make


def changed(name: str, change: Callable[[Any], Any]) -> Forge:
    """Change one tensor of the head."""
    return part("parts/head", lambda tensors: tensors.update({name: change(tensors[name])}))


def file_of(what: str, change: Callable[[bytes], bytes | None]) -> Forge:
    """Change the file of one of the newest version's objects; its hash is wrong then."""

    def make(files: Files) -> Mapping[str, bytes | int | None]:
        path = hostile.object_path(
            find(json.loads(files[NEWEST]), tuple(what.split("/")))["sha256"]
        )
        return {path: change(files[path])}

    return make


def many_parts(count: int, ref: Mapping[str, Any] | None = None) -> Forge:
    """Name one object, of nothing if none is given, as so many backbones."""
    empty = safetensors.numpy.save({})
    sha256 = hashlib.sha256(empty).hexdigest()
    made = {"sha256": sha256, "bytes": len(empty)}

    def edit(tree: Any) -> None:
        tree["parts"] |= {f"backbone.{i}": made for i in range(count)}
        tree["values"]["class_counts"] = [1] * count

    return edited(edit, new={hostile.object_path(sha256): empty})


def many_classes(count: int, name: str = "{}") -> Forge:
    names = [name.format(index) for index in range(count)]
    return edited(lambda tree: tree["history"][-1]["new_class_names"].extend(names))


def many_versions(count: int) -> Forge:
    return lambda files: {
        f"versions/{n:04d}.json": files[hostile.OLDEST].replace(b'"number":1,', b'"number":%d,' % n)
        for n in range(3, count)
    }


def ninth(tree: Any) -> dict[str, Any]:
    """Return images of a class that there is not."""
    return {"9": tree["exemplars"]["0"]}


def black(count: int) -> Forge:
    """Keep so many black exemplars of the first class."""
    images = np.zeros((count, 3, 8, 8), np.uint8)
    return part("exemplars/0", lambda tensors: tensors.update(images=images))


def vast(ref: str) -> Forge:
    """Refer to a terabyte of nothing that is really there."""
    new = {hostile.object_path("0" * 64): 10**12}
    return document((f"{ref}/sha256", "0" * 64), (f"{ref}/bytes", 10**12), new=new)


def method(name: str, **recipes: Any) -> Forge:
    return document(("settings/method", {"name": name, **recipes}))


TIMM = "settings/backbone/name"
ABSENT = {"sha256": "0" * 64, "bytes": 10**12}
GIANT = "timm/vit_giant_patch14_224"
BACKBONE = "parts/backbone.0"
LONE = {"task": 1, "new_class_names": ["a"], "outcome": {"verdict": "start"}}
NINTH = {"index": 9, "num": 1, "after": 1}
NO_CLASS = "it names a class index that does not exist"
VERSION, DOCUMENT = "version 2 of 'MODEL' cannot be brought back: ", "2.json' is damaged: "
# What is said of a learner in MODEL; nothing: any clear message, or a sound answer.
FORGERIES: Mapping[str, tuple[Forge, str]] = {
    "a bit flips": (
        file_of(BACKBONE, lambda data: data[:-1] + b"\xff"),
        "does not match its SHA-256",
    ),
    "a file is cut": (
        file_of("exemplars/0", lambda data: data[:20]),
        "it has 20 bytes instead of 1232",
    ),
    "a file goes": (file_of("parts/head", lambda _: None), "head is missing"),
    "NaN": (part(BACKBONE, lambda t: t["norm.bias"].fill(np.nan)), "holds numbers not finite"),
    "huge weights": (
        part(BACKBONE, lambda t: t["conv.weight"].fill(3.4e38)),
        "the scores are not finite",
    ),
    "transposed": (
        changed("weight", lambda t: t.T.copy()),
        "torch.float32 (12, 4), not torch.float32 (4, 12)",
    ),
    "another type": (
        changed("bias", lambda t: t.view("i4")),
        "torch.int32 (4,), not torch.float32 (4,)",
    ),
    "a tensor more": (
        part(BACKBONE, lambda t: t.update({"\x1b": t["norm.bias"]})),
        "unknown tensor '\\x1b'",
    ),
    "a tensor less": (
        part(BACKBONE, lambda t: t.pop("norm.bias")),
        "backbone 0 lacks tensor 'norm.bias'",
    ),
    "no image": (black(0), "exemplars of class 0 are damaged: there are 0, not 6"),
    "other images": (
        part("validation/0", lambda t: t.update(images=t["images"].transpose(0, 2, 3, 1))),
        "held-out images of class 0 are damaged: they are no images of the learner's shape",
    ),
    "more exemplars than images": (black(50), "6 images of class 0 take 9680 bytes"),
    "another count": (
        document(("exemplars/0/num", 7)),
        "exemplars of class 0 are damaged: there are 6, not 7",
    ),
    "no number": (text(b'"number":2,', b'"number":NaN,'), f"{DOCUMENT}expected value"),
    **{
        f"format {found!r}": (document(("format", found)), f"{DOCUMENT}it names no format")
        for found in (0, True, 1.0, "1", None)
    },
    "no history": (document(("history", [])), f"{DOCUMENT}history: "),
    "one class": (document(("history", [LONE])), "it has fewer than two classes"),
    "twins": (many_classes(1, "CLASS 0"), "or two of one name"),
    "two channels": (document(("shape", [2, 8, 8])), "one number for each of 1 or 3 channels"),
    "other images than measured": (
        edited(lambda t: t["history"][0]["accuracy"].update(classes=[NINTH])),
        NO_CLASS,
    ),
    "exemplars of no class": (edited(lambda t: t["exemplars"].update(ninth(t))), NO_CLASS),
    "held out of no class": (edited(lambda t: t["validation"].update(ninth(t))), NO_CLASS),
    "counts of no class": (document(("original_counts/9", 3)), NO_CLASS),
    "a class below": (document(("forgotten", [-1])), NO_CLASS),
    "no exemplar": (document(("exemplars/0/num", 0)), "num: it should be greater than"),
    "fewer bytes than none": (document(("parts/head/bytes", -1)), "bytes: it should be greater"),
    "a long date": (edited(lambda t: t["history"][0].update(date="9" * 101)), "at most 100"),
    "escapes for a date": (document(("created", "now\x1b[2J")), "created: it should be"),
    "a share above one": (
        edited(lambda t: t["history"][0]["accuracy"].update(teacher=1.5)),
        "teacher: it should be",
    ),
    "a hook": (document(("hook", "rm -rf")), f"{DOCUMENT}hook: "),
    "magic": (method("magic"), "unknown method 'magic'"),
    "a newer format": (
        document(("format", 2)),
        "2.json' has format 2, this grace reads up to 1: upgrade grace",
    ),
    "a path for a hash": (
        document(("calibration/sha256", "../../secret")),
        "it should be a text of the form",
    ),
    "a class that is none": (document(("forgotten", [1, 4])), NO_CLASS),
    "a class with escapes for a name": (
        many_classes(1, "\x1b[2J"),
        "'\\x1b[2J' has a control character",
    ),
    "a class with a zero byte": (many_classes(1, "a\0b"), "has a control character"),
    "a class with a path for a name": (many_classes(1, "../../outside/secret"), ""),
    "a class with a long name": (many_classes(1, "x" * 10**6), "the class name: "),
    "a pile of accents": (many_classes(1, "e" + "\u0301\u0323" * 250_000), "the class name: "),
    "three thousand classes": (many_classes(3_000), VERSION),
    "backbones that are one": (
        edited(lambda t: t["parts"].update({"backbone.9": t["parts"]["backbone.0"]})),
        f"{DOCUMENT}two of its parts are one object",
    ),
    "no backbone": (document(("parts", {})), VERSION),
    "a backbone of nothing": (many_parts(1), "lacks tensor"),
    "a part named like a score": (document(("parts/calibration", ABSENT)), "too many for"),
    "a terabyte": (vast(BACKBONE), "1000000006396 bytes, too many for the memory of this machine"),
    "exemplars of a terabyte": (vast("exemplars/0"), "too many for the memory of this machine"),
    "two hundred versions": (many_versions(200), ""),
    "ResNet-50": (
        document((TIMM, "resnet50")),
        "the saved backbone 0 lacks tensor 'body.bn1.bias'",
    ),
    "no such backbone": (
        document((TIMM, "resnet1\x1b")),
        "'resnet1\\x1b'; did you mean 'resnet18'?",
    ),
    "a backbone with a long name": (document((TIMM, "timm/" + "x" * 10**5)), ""),
    "a giant of timm": (document((TIMM, GIANT)), VERSION),
    "a giant of timm, unlearnt": (unlearnt((TIMM, GIANT)), ""),
    "a model from elsewhere": (document((TIMM, "timm/hf-hub:a/b")), VERSION),
    "a folder for timm": (document((TIMM, "timm/local-dir:../outside")), VERSION),
    "large images": (document(("shape", [3, 1024, 1024])), VERSION),
    "huge images, unlearnt": (unlearnt(("shape", [3, 10**5, 10**5])), "model.json' is damaged: "),
    "no images at all": (document(("shape", [3, 0, 0])), f"{DOCUMENT}shape.1: "),
    "a mean too large": (document(("mean", [1e300, 0, 0])), f"{DOCUMENT}mean.0: "),
    "a spread too small": (document(("std", [1e-300, 1, 1])), f"{DOCUMENT}std.0: "),
    "another method": (method("der"), VERSION),
    "epochs without end": (
        method("grace", base={"epochs": 10**9}),
        "base.epochs: it should be less than",
    ),
    "many milestones": (document(("settings/method/base/milestones", [5] * 300_000)), ""),
    "values that never end": (document(("values", {"compressions": 10**19})), VERSION),
    "a backbone of no class": (
        document(("values/class_counts", [0, 4])),
        "class_counts.0: it should be",
    ),
    "values of no method": (
        document(("values/class_counts", [4])),
        "the classes of every backbone",
    ),
    "no such version": (
        whole(lambda: b'{"version":7}', "current.json"),
        "has no version 7 (it has 1, 2)",
    ),
    "a version of many digits": (
        whole(lambda: b'{"version": 99999999999999999999}', "current.json"),
        "'MODEL' has no version 9999",
    ),
    "sixty million brackets": (whole(lambda: b"[" * (1 << 26)), f"{DOCUMENT}"),
    "empty objects": (whole(lambda: b"[" + b"{}," * (1 << 22) + b"{}]"), f"{DOCUMENT}"),
    "empty lists": (whole(lambda: b'{"values":[' + b"[]," * (5 << 20) + b"[]]}"), f"{DOCUMENT}"),
    "many keys": (
        whole(lambda: written({str(n): 0 for n in range(100_000)})),
        "it names no format",
    ),
    "a string without an end": (whole(lambda: b'"' + b"\\" * (1 << 22)), f"{DOCUMENT}"),
    "too large a document": (whole(lambda: 5 * 10**10), "2.json' is damaged: it has"),
    "too large a model.json": (whole(lambda: (1 << 22) + 1, CREATION), "model.json' is damaged"),
    "too large a history": (whole(lambda: 5 * 10**10, "history.jsonl"), ""),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_the_message_names_what_is_wrong(examiner: hostile.Examiner, name: str) -> None:
    forge, message = FORGERIES[name]
    outcome = examiner.examine(writing(forge(examiner.model.files)))
    assert message == "" or outcome == {"refused"}
    assert message in (examiner.said or "").replace(str(examiner.model.path), "MODEL")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("engine/threads", 10**9),
        ("engine/eval_batch_size", 10**9),
        ("engine/device", "cuda"),
        ("engine/precision", "float16"),
        ("engine/compile", True),
        ("method/base/epochs", 10**6),
        ("seeds/initialisation", 10**19),
        ("data/root", "/etc"),
        ("description", "\x1b[31m" * 10**5),
    ],
)
def test_what_does_not_matter_changes_no_answer(spoilt: Model, setting: str, value: Any) -> None:
    expected = Learner.load(spoilt.path).predict_proba(PROBE)
    writing(document((f"settings/{setting}", value))(spoilt.files))(spoilt.path)
    found = Learner.load(spoilt.path).predict_proba(PROBE)
    # With a GPU this learner computes on it, and rounds otherwise.
    on_gpu = setting.endswith(("device", "precision")) and torch.cuda.is_available()
    torch.testing.assert_close(found, expected, rtol=0, atol=0.01 if on_gpu else 0)


def test_an_object_that_was_damaged_since_is_written_anew(spoilt: Model) -> None:
    learner = Learner.load(spoilt.path)
    # The fixed backbone is part of every version.
    writing(file_of(BACKBONE, lambda data: bytes(len(data)))(spoilt.files))(spoilt.path)
    with pytest.raises(ValueError, match="is damaged"):
        Learner.load(spoilt.path)
    update(learner)
    assert torch.equal(Learner.load(spoilt.path).predict_proba(PROBE), learner.predict_proba(PROBE))


def test_a_version_without_class_means_takes_them_away(spoilt: Model) -> None:
    learner = Learner.load(spoilt.path)
    assert list(learner.scores(PROBE)) == ["linear", "nearest_mean"]
    edit = edited(lambda tree: tree["parts"].pop("class_means"))
    writing(edit(spoilt.files))(spoilt.path)
    learner.rollback(2)
    assert list(learner.scores(PROBE)) == ["linear"]


# --- Other kinds of file, and the journal ---------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("versions/0002.json", "a link to what it was", "is damaged: it is a link, and links are"),
        ("current.json", "a pipe", "is damaged: it is no regular file"),
        ("model.json", "a folder", "is damaged: it is no regular file"),
        ("versions", "a link to a folder elsewhere", "is a link, and links are not followed"),
        ("objects", "a link to what it was", "is a link, and links are not followed"),
        ("pending", "a link to a folder elsewhere", "is a link, and links are not followed"),
    ],
)
def test_other_kinds_of_file_are_not_opened(
    spoilt: Model, name: str, kind: str, message: str
) -> None:
    hostile.replace(spoilt.path / name, kind)
    with pytest.raises(ValueError, match=message) as refused:
        Learner.load(spoilt.path)
    assert f"'{spoilt.path / name}'" in str(refused.value)


def test_a_journal_that_was_altered_changes_nothing(spoilt: Model) -> None:
    learner = Learner.load(spoilt.path)
    update(learner)
    expected = learner.predict_proba(PROBE)
    spoilt.restore()
    for path in sorted((spoilt.path / "pending").glob("*.safetensors")):
        said, tensors = hostile.read_entry(path.read_bytes())
        bare = safetensors.numpy.save({name: np.roll(own, 1) for name, own in tensors.items()})
        said = said.replace('"plain":0.', '"plain":0.9')
        path.write_bytes(hostile.write_entry(said, bare, right=False))
    learner = Learner.load(spoilt.path)
    update(learner)
    assert bool((learner.predict_proba(PROBE) == expected).all())


def test_a_journal_that_lies_is_blamed(spoilt: Model) -> None:
    path = spoilt.path / "pending" / "0001.safetensors"
    said, tensors = hostile.read_entry(path.read_bytes())
    facts = json.loads(said)
    assert (facts["kind"], facts["name"]) == ("sweep", "assess")
    said = json.dumps({**facts, "value": {"plain": "high"}})
    path.write_bytes(hostile.write_entry(said, safetensors.numpy.save(tensors), right=True))
    learner = Learner.load(spoilt.path)
    with pytest.raises(ValueError, match=r"cannot go on: .*: begin anew") as refused:
        update(learner)
    assert str(spoilt.path / "pending") in str(refused.value)
    assert isinstance(refused.value.__cause__, TypeError)


def test_a_lock_of_two_names_is_not_written_into(spoilt: Model) -> None:
    hostile.replace(spoilt.path / "lock", "a second name of a file elsewhere")
    update(Learner.load(spoilt.path))
    assert (spoilt.outside / "secret.json").read_text() == '{"version": 1}\n'


def test_folders_too_deep_to_remove_are_an_error(spoilt: Model) -> None:
    (spoilt.path / "pending" / "update.json").unlink()
    pending, here = spoilt.path / "pending", Path.cwd()
    os.chdir(pending)
    for _ in range(1500):  # Deeper than paths may be long, as archives can hold them.
        Path("d").mkdir()
        os.chdir("d")
    os.chdir(here)
    message = refusal(lambda: update(Learner.load(spoilt.path)))
    # Where few files may be open at once, the system refuses before we do.
    assert (message or "").startswith(
        (f"'{pending}' holds folders too deep to remove", "[Errno 24]")
    )


PICKLED = Pickler.dumps(Path)
MISDEEDS: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "reads elsewhere": (lambda p: (p / "link" / "file").read_bytes(), "open: "),
    "lists elsewhere": (lambda p: [*(p / "link").iterdir()], "os.listdir: "),
    "writes elsewhere": (lambda p: (p / "../outside/new").touch(), "open: "),
    "runs a program": (lambda p: subprocess.run(["true"], check=True), "subprocess.Popen("),
    "calls": (lambda p: socket.getaddrinfo("localhost", 1), "socket.getaddrinfo("),
    "runs a file": (lambda p: runpy.run_path(str(p / "file")), "exec("),
    "finds a class by its name": (lambda p: Pickler.loads(PICKLED), "pickle.find_class"),
    "computes": (lambda p: [n for n in iter(int, 1) if n], "took more than 0.2 s"),
    "takes memory": (lambda p: bytearray(3 << 29), "MemoryError"),
    "nothing": (lambda p: ((p / "file").read_bytes(), [*p.iterdir()], sorted(range(9))), "[]"),
}


def test_the_guard_notices_what_must_not_be(examiner: hostile.Examiner, tmp_path: Path) -> None:
    for folder in ("model", "outside"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").touch()
    (tmp_path / "model" / "link").symlink_to(tmp_path / "outside")
    for name, (act, expected) in MISDEEDS.items():
        error = ""
        with examiner.guard.watching(tmp_path / "model", seconds=0.2) as wrong:
            try:
                act(tmp_path / "model")
            except Exception as raised:
                error = type(raised).__name__
        assert expected in f"{wrong} {error}", name
