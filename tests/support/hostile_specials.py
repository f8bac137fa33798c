"""Forgeries made on purpose: each aims at one weak place."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from support import hostile_json, hostile_objects

Files = Mapping[Path, bytes]
Changes = Mapping[Path, bytes | None]
"""What files hold then; none removes one."""
NEWEST = Path("versions/0002.json")
CREATION = Path("model.json")
RECIPE = ("settings", "method", "base")


def document(*changes: tuple[str, Any], name: Path = NEWEST) -> Callable[[Files], Changes]:
    """Set fields of a document, each named by its path with slashes."""

    def make(files: Files) -> Changes:
        tree = json.loads(files[name])
        for path, value in changes:
            parts = path.split("/")
            hostile_json.find(tree, tuple(parts[:-1]))[parts[-1]] = value
        return {name: hostile_json.dumps(tree)}

    return make


def both(*changes: tuple[str, Any]) -> Callable[[Files], Changes]:
    """Set fields of the newest document and of ``model.json``."""

    def make(files: Files) -> Changes:
        return {
            **document(*changes)(files),
            **document(*changes, name=CREATION)(files),
        }

    return make


def unlearnt(*changes: tuple[str, Any]) -> Callable[[Files], Changes]:
    """Set fields of ``model.json``, where no version is in use."""

    def make(files: Files) -> Changes:
        return {**document(*changes, name=CREATION)(files), Path("current.json"): None}

    return make


def many_backbones(count: int) -> Callable[[Files], Changes]:
    """Name one backbone so many times."""

    def make(files: Files) -> Changes:
        tree = json.loads(files[NEWEST])
        ref = tree["parts"]["backbone.0"]
        tree["parts"] |= {f"backbone.{index}": ref for index in range(count)}
        tree["values"]["class_counts"] = [1] * count
        return {NEWEST: hostile_json.dumps(tree)}

    return make


def many_small_objects(count: int) -> Callable[[Files], Changes]:
    """Name a tiny object so many times."""

    def make(files: Files) -> Changes:
        data = hostile_objects.write({})
        sha256 = hashlib.sha256(data).hexdigest()
        tree = json.loads(files[NEWEST])
        ref = {"sha256": sha256, "bytes": len(data)}
        tree["parts"] |= {f"backbone.{index}": ref for index in range(count)}
        return {NEWEST: hostile_json.dumps(tree), hostile_objects.object_path(sha256): data}

    return make


def many_classes(count: int, name: str = "{}") -> Callable[[Files], Changes]:
    """Know so many classes."""

    def make(files: Files) -> Changes:
        tree = json.loads(files[NEWEST])
        names = [name.format(index) for index in range(count)]
        last = tree["history"][-1]
        last["new_class_names"] = [*last["new_class_names"], *names]
        return {NEWEST: hostile_json.dumps(tree)}

    return make


def many_updates(count: int) -> Callable[[Files], Changes]:
    """Have so long a history."""

    def make(files: Files) -> Changes:
        tree = json.loads(files[NEWEST])
        outcome = {"verdict": "train"}
        tree["history"] += [
            {"task": task, "new_class_names": [], "outcome": outcome} for task in range(3, count)
        ]
        return {NEWEST: hostile_json.dumps(tree)}

    return make


def many_versions(count: int) -> Callable[[Files], Changes]:
    """Have so many documents."""

    def make(files: Files) -> Changes:
        text = files[Path("versions/0001.json")].replace(b'"number":1,', b'"number":%d,')
        return {Path(f"versions/{n:04d}.json"): text % n for n in range(3, count)}

    return make


def zeros(num_images: int) -> Callable[[Files], Changes]:
    """Keep so many black exemplars of the first class."""

    def make(files: Files) -> Changes:
        tree = json.loads(files[NEWEST])
        images = hostile_objects.Piece("U8", (num_images, 3, 8, 8), bytes(192 * num_images))
        data = hostile_objects.write({"images": images})
        return hostile_objects.exchange(files, {tree["exemplars"]["0"]["sha256"]: data}, [NEWEST])

    return make


class Vast(bytes):
    """Stands for a terabyte that takes no room on the disk."""


def vast(ref: str) -> Callable[[Files], Changes]:
    """Refer to a terabyte of nothing that is really there."""
    made = {"sha256": "0" * 64, "bytes": 10**12}

    def make(files: Files) -> Changes:
        return {**document((ref, made))(files), hostile_objects.object_path("0" * 64): Vast()}

    return make


def whole(make: Callable[[], bytes], name: Path = NEWEST) -> Callable[[Files], Changes]:
    """Be any bytes, made when they are wanted."""
    return lambda files: {name: make()}


def repeated_recipe(epochs: int) -> dict[str, Any]:
    """A recipe that leaves everything but the epochs to its default."""
    return {"name": "grace", "base": {"epochs": epochs}}


SPECIALS: tuple[tuple[str, Callable[[Files], Changes]], ...] = (
    ("a giant model of timm", document(("settings/backbone/name", "timm/vit_giant_patch14_224"))),
    ("no model of timm", document(("settings/backbone/name", "timm/no_such_model"))),
    ("a model of timm from elsewhere", document(("settings/backbone/name", "timm/hf-hub:a/b"))),
    ("a folder for timm", document(("settings/backbone/name", "timm/local-dir:../outside"))),
    (
        "a giant of timm, unlearnt",
        unlearnt(("settings/backbone/name", "timm/vit_giant_patch14_224")),
    ),
    ("no such backbone", document(("settings/backbone/name", "resnet1001"))),
    (
        "a backbone with a very long name",
        document(("settings/backbone/name", "timm/" + "x" * 10**6)),
    ),
    ("a backbone with a name of escapes", document(("settings/backbone/name", "\x1b[31m\n"))),
    ("ResNet-50 with files of ResNet-8", document(("settings/backbone/name", "resnet50"))),
    (
        "ResNet-50 on large images",
        document(
            ("settings/backbone/name", "resnet50"),
            ("settings/backbone/stem", "cifar"),
            ("shape", [3, 1024, 1024]),
        ),
    ),
    ("large images", document(("shape", [3, 1024, 1024]))),
    ("huge images, unlearnt", unlearnt(("shape", [3, 10**5, 10**5]))),
    ("images of other shape", document(("shape", [3, 8, 9]))),
    ("grey images", document(("shape", [1, 8, 8]), ("mean", [0.5]), ("std", [0.5]))),
    ("no images", both(("shape", [3, 0, 0]))),
    ("a mean too large", document(("mean", [1e300, 0, 0]))),
    ("a spread too small", document(("std", [1e-300, 1, 1]))),
    ("a billion threads", document(("settings/engine/threads", 10**9))),
    ("batches of a billion", document(("settings/engine/eval_batch_size", 10**9))),
    ("another device", document(("settings/engine/device", "cuda"))),
    ("another precision", document(("settings/engine/precision", "float16"))),
    ("compiled", document(("settings/engine/compile", True))),
    ("another method", document(("settings/method", {"name": "der"}))),
    ("a method without memory", document(("settings/method", {"name": "finetune"}))),
    ("a method that keeps all", document(("settings/method", {"name": "joint"}))),
    ("a billion epochs", document(("/".join((*RECIPE, "epochs")), 10**9))),
    ("a billion epochs and no milestones", document(("settings/method", repeated_recipe(10**9)))),
    ("too many epochs to count", document(("settings/method", repeated_recipe(10**19)))),
    ("a huge ceiling", document(("settings/memory/max_mb", 1e308))),
    ("many milestones", document(("/".join((*RECIPE, "milestones")), [5] * 300_000))),
    ("many named tasks", document(("settings/method/expand_at", [1] * 300_000))),
    ("a seed of twenty digits", document(("settings/seeds/initialisation", 10**19))),
    ("no backbone", document(("parts", {}))),
    ("ten thousand backbones", many_backbones(10_000)),
    ("ten thousand tiny backbones", many_small_objects(10_000)),
    ("ten thousand classes", many_classes(10_000)),
    ("thirty thousand classes", many_classes(30_000)),
    ("a class with a long name", many_classes(1, "x" * 10**6)),
    ("a class with a long pile of accents", many_classes(1, "e" + "\u0301\u0323" * 250_000)),
    ("a class with a path for a name", many_classes(1, "../../outside/secret")),
    ("a class with escapes for a name", many_classes(1, "\x1b[2J\r\n")),
    ("a class with a zero byte in its name", many_classes(1, "a\0b")),
    ("three thousand updates", many_updates(3_000)),
    ("two hundred versions", many_versions(200)),
    ("more exemplars than images", zeros(10_000)),
    (
        "a part named like a score",
        document(("parts/calibration", {"sha256": "0" * 64, "bytes": 10**12})),
    ),
    ("a backbone of a terabyte", vast("parts/backbone.0")),
    ("exemplars of a terabyte", vast("exemplars/0")),
    ("held-out images of a terabyte", vast("validation/0")),
    ("scores of a terabyte", vast("calibration")),
    ("a path for a hash", document(("calibration/sha256", "../../outside/secret" + "0" * 44))),
    ("a hash in capitals", document(("calibration/sha256", "A" * 64))),
    ("a negative size", document(("calibration/bytes", -1))),
    ("values that never end", document(("values", {"compressions": 10**19}))),
    ("a version in use that is none", whole(lambda: b'{"version": 3}', Path("current.json"))),
    (
        "a version of many digits",
        whole(lambda: b'{"version": 99999999999999999999}', Path("current.json")),
    ),
    ("a newer format", document(("format", 2))),
    ("a much newer format", document(("format", 10**19))),
    ("a newer format of model.json", document(("format", 2), name=CREATION)),
    ("sixty million brackets", whole(lambda: b"[" * (1 << 26))),
    ("a document of empty objects", whole(lambda: b"[" + b"{}," * (1 << 22) + b"{}]")),
    ("a document of empty lists", whole(lambda: b'{"values":[' + b"[]," * (5 << 20) + b"[]]}")),
    ("a document of numbers", whole(lambda: b"[" + b"1," * (1 << 23) + b"1]")),
    (
        "a document of keys",
        whole(lambda: b"{" + b",".join(b'"%d":0' % n for n in range(100_000)) + b"}"),
    ),
    ("a string without an end", whole(lambda: b'"' + b"\\" * (1 << 22))),
    ("too large a document", whole(lambda: b" " * ((1 << 26) + 1))),
    ("too large a model.json", whole(lambda: b" " * ((1 << 22) + 1), CREATION)),
)
