"""What people are told of a forged learner, word by word."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from support.hostile_mutations import NEWEST, writing
from support.hostile_objects import Piece, Pieces

from grace.learner.learner import Learner
from support import hostile_json, hostile_objects
from support import hostile_specials as specials
from support.hostile_model import PROBE, Model, update

Forge = Callable[[Mapping[Path, bytes]], Mapping[Path, bytes | None]]


def part(what: str, change: Callable[[Pieces], Pieces]) -> Forge:
    """Change the tensors of one of the newest version's objects; all hashes are right."""

    def make(files: Mapping[Path, bytes]) -> Mapping[Path, bytes | None]:
        sha256 = hostile_json.find(json.loads(files[NEWEST]), tuple(what.split("/")))["sha256"]
        pieces = hostile_objects.read(files[hostile_objects.object_path(sha256)])
        data = hostile_objects.write(change(pieces))
        return {**hostile_objects.exchange(files, {sha256: data}, [NEWEST])}

    return make


def file_of(what: str, change: Callable[[bytes], bytes | None]) -> Forge:
    """Change the file of one of the newest version's objects; its hash is wrong then."""

    def make(files: Mapping[Path, bytes]) -> Mapping[Path, bytes | None]:
        sha256 = hostile_json.find(json.loads(files[NEWEST]), tuple(what.split("/")))["sha256"]
        path = hostile_objects.object_path(sha256)
        return {path: change(files[path])}

    return make


def text(old: bytes, new: bytes) -> Forge:
    """Change the newest document as text."""
    return lambda files: {NEWEST: files[NEWEST].replace(old, new, 1)}


def other(name: str, **changes: Any) -> Callable[[Pieces], Pieces]:
    """Give one tensor another type, shape or bytes."""

    def change(pieces: Pieces) -> Pieces:
        old = pieces[name]
        given = {"dtype": old.dtype, "shape": old.shape, "data": old.data, **changes}
        return {**pieces, name: Piece(**given)}

    return change


NAN, HUGE = b"\x00\x00\xc0\x7f", b"\xff\xff\x7f\x7f"  # NaN and 3.4e38 as float32
BACKBONE = "parts/backbone.0"
DOCUMENT = "'MODEL/versions/0002.json' is damaged: "
VERSION = "version 2 of 'MODEL' cannot be brought back: "
SMALL = 20  # Pixels of no learner: an object so small is another one.

# What the message says of a learner in MODEL.
FORGERIES: Mapping[str, tuple[Forge, str]] = {
    "a bit flips": (
        file_of(BACKBONE, lambda data: data[:-1] + bytes([data[-1] ^ 1])),
        f"{VERSION}backbone.0 is damaged: its content does not match its SHA-256",
    ),
    "a file is cut": (
        file_of("exemplars/0", lambda data: data[:SMALL]),
        f"{VERSION}exemplars of class 0 is damaged: it has 20 bytes instead of 1232",
    ),
    "a file goes": (
        file_of("parts/head", lambda data: None),
        f"{VERSION}head is missing",
    ),
    "NaN": (
        part(BACKBONE, other("norm.bias", data=NAN * 6)),
        f"{VERSION}tensor 'norm.bias' of the saved backbone 0 holds numbers not finite",
    ),
    "huge weights": (
        part(BACKBONE, other("conv.weight", data=HUGE * 162)),
        "'MODEL': the scores are not finite: the weights are damaged",
    ),
    "transposed": (
        part("parts/head", other("weight", shape=(12, 4))),
        f"{VERSION}tensor 'weight' of the saved head is torch.float32 (12, 4), not torch.float32 "
        "(4, 12): it belongs to another network",
    ),
    "another type": (
        part("parts/head", other("bias", dtype="I32")),
        f"{VERSION}tensor 'bias' of the saved head is torch.int32 (4,), not torch.float32 (4,): it "
        "belongs to another network",
    ),
    "a tensor more": (
        part(BACKBONE, lambda pieces: {**pieces, "\x1b[2J": pieces["norm.bias"]}),
        f"{VERSION}the saved backbone 0 has an unknown tensor '\\x1b[2J': it belongs to another "
        "network or was changed",
    ),
    "a tensor less": (
        part(BACKBONE, lambda pieces: {n: p for n, p in pieces.items() if n != "norm.bias"}),
        f"{VERSION}the saved backbone 0 lacks tensor 'norm.bias': it belongs to another network "
        "or was changed",
    ),
    "no image": (
        part("exemplars/0", other("images", shape=(0, 3, 8, 8), data=b"")),
        f"{VERSION}exemplars of class 0 are damaged: there are 0, not 6",
    ),
    "other images": (
        part("validation/0", other("images", shape=(1, 8, 8, 3))),
        f"{VERSION}held-out images of class 0 are damaged: they are no images of the learner's "
        "shape",
    ),
    "more exemplars than images": (
        specials.zeros(50),
        f"{VERSION}6 images of class 0 take 9680 bytes",
    ),
    "another count": (
        specials.document(("exemplars/0/num", 7)),
        f"{VERSION}exemplars of class 0 are damaged: there are 6, not 7",
    ),
    "a key twice": (
        text(b'{"format":1,', b'{"format":1,"format":1,'),
        f"{DOCUMENT}the key 'format' stands twice in one object",
    ),
    "a huge integer": (
        text(b'"number":2,', b'"number":' + b"9" * 400 + b","),
        f"{DOCUMENT}the integer '{'9' * 40}\\u2026' has more than 20 digits",
    ),
    "no number": (text(b'"number":2,', b'"number":NaN,'), f"{DOCUMENT}NaN is no number"),
    "too deep": (
        text(b'"values":{', b'"values":{"a":' + b"[" * 100 + b"]" * 100 + b","),
        f"{DOCUMENT}it is nested more than 64 deep",
    ),
    "a newer format": (
        specials.document(("format", 2)),
        "'MODEL/versions/0002.json' has format 2, this grace reads up to 1: upgrade grace",
    ),
    "a path for a hash": (
        specials.document(("calibration/sha256", "../../../outside/secret")),
        f"{DOCUMENT}calibration.sha256: it should be a text of the form ^[0-9a-f]{{64}}$",
    ),
    "a class that is none": (
        specials.document(("forgotten", [1, 4])),
        f"{DOCUMENT}it names a class index that does not exist",
    ),
    "a class with escapes for a name": (
        specials.many_classes(1, "\x1b[2J"),
        f"{DOCUMENT}the class name: '\\x1b[2J' has a control character, a line break or bytes that "
        "are not UTF-8",
    ),
    "backbones that are one": (
        specials.many_backbones(3),
        f"{DOCUMENT}two of its parts are one object",
    ),
    "a terabyte": (
        specials.vast(BACKBONE),
        f"{VERSION}it says that it has 1000000006396 bytes, too many for the memory of this "
        "machine: it is damaged, or needs a larger one",
    ),
    "ResNet-50": (
        specials.document(("settings/backbone/name", "resnet50")),
        f"{VERSION}the saved backbone 0 lacks tensor 'body.bn1.bias': it belongs to another "
        "network or was changed",
    ),
    "no such backbone": (
        specials.document(("settings/backbone/name", "resnet1\x1b")),
        f"{VERSION}unknown backbone 'resnet1\\x1b'; did you mean 'resnet18'? (known: resnet20, "
        "resnet32, resnet44, resnet56, resnet18, resnet34, resnet50, timm/<model>)",
    ),
    "epochs without end": (
        specials.document(("settings/method", specials.repeated_recipe(10**9))),
        f"{DOCUMENT}settings.method: base.epochs: it should be less than or equal to 1000000",
    ),
    "no such version": (
        specials.whole(lambda: b'{"version":7}', Path("current.json")),
        "'MODEL' has no version 7 (it has 1, 2)",
    ),
    "a backbone of no class": (
        specials.document(("values/class_counts", [0, 4])),
        f"{VERSION}the saved grace is damaged: class_counts.0: it should be greater than or "
        "equal to 1",
    ),
    "values of no method": (
        specials.document(("values/class_counts", [4])),
        f"{VERSION}the saved grace does not count the classes of every backbone",
    ),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_the_message_names_what_is_wrong(spoilt: Model, name: str) -> None:
    make, message = FORGERIES[name]
    writing(make(spoilt.files))(spoilt.path)
    with pytest.raises(ValueError, match="model") as refusal:
        Learner.load(spoilt.path).predict(PROBE)
    remedy = ": restore it from a backup, or roll back to another version"
    is_refused = message.startswith((DOCUMENT, VERSION)) and "unknown backbone" not in message
    expected = message + remedy * is_refused
    assert str(refusal.value).replace(str(spoilt.path), "MODEL") == expected


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("settings/engine/threads", 10**9),
        ("settings/engine/eval_batch_size", 10**9),
        ("settings/engine/device", "cuda"),
        ("settings/engine/precision", "float16"),
        ("settings/engine/compile", True),
        ("settings/method/base/epochs", 10**6),
        ("settings/seeds/initialisation", 10**19),
        ("settings/data/root", "/etc"),
        ("settings/description", "\x1b[31m" * 10**5),
    ],
)
def test_what_does_not_matter_changes_no_answer(spoilt: Model, setting: str, value: Any) -> None:
    expected = Learner.load(spoilt.path).predict_proba(PROBE)
    writing(specials.document((setting, value))(spoilt.files))(spoilt.path)
    found = Learner.load(spoilt.path).predict_proba(PROBE)
    if setting.endswith(("device", "precision")) and torch.cuda.is_available():
        # With a GPU this learner computes on it, and rounds otherwise.
        torch.testing.assert_close(found, expected, rtol=0, atol=0.01)
    else:
        assert torch.equal(found, expected)


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
    tree = json.loads(spoilt.files[NEWEST])
    del tree["parts"]["class_means"]
    writing({NEWEST: hostile_json.dumps(tree)})(spoilt.path)
    learner.rollback(2)
    assert list(learner.scores(PROBE)) == ["linear"]
