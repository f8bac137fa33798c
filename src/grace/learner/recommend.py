"""Recommend settings for a new learner from its images, its ceiling and this machine.

What the numbers rest on stands in docs/learner/defaults.md.
"""

import ctypes
import sys
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import final

from grace.base.errors import GraceError
from grace.base.machine import usable_cores
from grace.base.words import counted
from grace.data.folder_tree import FolderTree
from grace.learner.setting_changes import is_recipe
from grace.settings.experiment import ExperimentSettings
from grace.settings.recipe import Recipe

MINUTES = 3.0
"""Default of ``budget.minutes`` for a new learner."""
RELATIVE_THRESHOLD = 1.2
"""Default of ``method.relative_threshold`` for a new learner: the level of saturations depends on
backbone and images far more than their rise does while a backbone fills."""
MOST_EPOCHS = 120
"""Epochs of a recipe if the budget has time for them."""
BATCH_SIZE = 32
"""A few hundred images need many small steps rather than few large ones."""
BACKBONE_BYTES = {
    "resnet20": 1_082_000,
    "resnet32": 1_863_000,
    "resnet44": 2_645_000,
    "resnet56": 3_426_000,
    "resnet18": 44_714_000,
    "resnet34": 85_176_000,
    "resnet50": 94_214_000,
}
"""Bytes of each backbone's weights, rounded."""
NUM_SAMPLED = 200
"""Number of images whose headers are read."""


@final
@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a recommendation depends on.

    Args:
        num_classes: classes of the first images.
        num_images: training images of all classes.
        shortest: shorter side in pixels of the median image; ``None``: no image can be read.
        max_mb: ceiling in megabytes; ``None``: no ceiling.
        has_gpu: training runs on a GPU.
        num_cores: CPU cores that training may use.
    """

    num_classes: int
    num_images: int
    shortest: int | None
    max_mb: float | None
    has_gpu: bool
    num_cores: int


def recommend(facts: Facts, asked: ExperimentSettings, given: Set[str]) -> list[str]:
    """Recommend ``key.path=value`` texts for a new learner.

    Args:
        facts: images, ceiling and machine.
        asked: the settings without a recommendation.
        given: dotted paths of the settings that the user gave; they stay.
    """
    wanted: dict[str, object] = {}
    if "backbone.weights" not in given:
        wanted |= {"backbone.name": _backbone(facts), "data.image_size": _side(facts)}
        for name, recipe in asked.method:
            if isinstance(recipe, Recipe):
                wanted |= _recipe(f"method.{name}.", recipe, given)
    if not any(map(_is_length, given)) and asked.method.traits.trains_backbone:
        wanted["budget.minutes"] = MINUTES
    if "relative_threshold" in type(asked.method).model_fields and not given & _DECIDING:
        wanted["method.relative_threshold"] = RELATIVE_THRESHOLD
    return [f"{path}={value}" for path, value in wanted.items() if path not in given]


def reasons(facts: Facts, settings: ExperimentSettings) -> list[str]:
    """Say in one line each what network, training and memory a new learner gets, and for what."""
    machine = "a GPU" if facts.has_gpu else counted(facts.num_cores, "CPU core")
    most = f" under {facts.max_mb:g} MB" if facts.max_mb is not None else ""
    classes = counted(facts.num_classes, "class", "classes")
    where = f"{counted(facts.num_images, 'image')} of {classes} on {machine}{most}"
    side, minutes, memory = settings.data.image_size, settings.budget.minutes, settings.memory
    pixels = "their own size" if side is None else f"{side} pixels"
    limit = f"about {minutes:g} minutes an update at most" if minutes else "all epochs"
    kept = f"up to {memory.size} images of old classes"
    if memory.size is None:
        kept = "as many images of old classes as the ceiling has room for"
    return [
        f"network   {settings.backbone.name} at {pixels}: for {where}",
        f"training  {settings.method.name}, {limit}",
        f"memory    {kept}; up to {memory.validation} of each class held out",
    ]


def _backbone(facts: Facts) -> str:
    """Choose the largest backbone that leaves most of the ceiling to growth and images."""
    room = float("inf") if facts.max_mb is None else 1e6 * facts.max_mb / 5
    # On a CPU, twelve layers more cost more accuracy in epochs than they bring.
    able = (name for name in ("resnet18", "resnet32") if room >= BACKBONE_BYTES[name])
    return next(able, "resnet20") if facts.has_gpu else "resnet20"


def _side(facts: Facts) -> int:
    """Choose the side in pixels: never more than the images have, 8 at least."""
    has_room = facts.max_mb is None or facts.max_mb >= 50
    most = 64 if facts.has_gpu and has_room else 32
    return most if facts.shortest is None else max(8, min(most, facts.shortest))


def _recipe(prefix: str, recipe: Recipe, given: Set[str]) -> dict[str, object]:
    """Return the recommended values of a recipe; those that a given setting excludes are absent."""
    own = {path.removeprefix(prefix) for path in given if path.startswith(prefix)}
    if recipe.optimiser != "sgd" or own - {"epochs", "batch_size", "lr", "weight_decay"}:
        return {}
    wanted = {"epochs": MOST_EPOCHS, "batch_size": BATCH_SIZE, "schedule": "cosine"}
    return {f"{prefix}{name}": value for name, value in wanted.items()}


_DECIDING = {"method.threshold", "method.expand_at", "method.relative_threshold"}
"""Settings by which the user decides when to grow."""


def _is_length(path: str) -> bool:
    """Return ``True`` for a setting by which the user decides how long an update takes."""
    return path.startswith("budget.") or (is_recipe(path) and path.endswith(".epochs"))


def facts_of(tree: FolderTree, asked: ExperimentSettings) -> Facts:
    """Look at the files of a folder, at some of their headers, and at this machine."""
    files = sorted(tree.files(False))
    step = max(1, len(files) // NUM_SAMPLED)
    sides = sorted(side for file in files[::step] for side in _shorter_side(file.path))
    return Facts(
        num_classes=len(tree.class_names),
        num_images=len(files),
        shortest=sides[len(sides) // 2] if sides else None,
        max_mb=asked.memory.max_mb,
        has_gpu=_has_gpu(asked),
        num_cores=asked.engine.threads or usable_cores(),
    )


def _shorter_side(path: Path) -> Iterator[int]:
    """Yield the shorter side of an image; nothing if it cannot be read."""
    # It imports numpy, which --help does not need.
    from grace.data.decoding import upright_size

    try:
        yield min(upright_size(path))
    except GraceError:
        return


def _has_gpu(asked: ExperimentSettings) -> bool:
    """Return ``True`` if torch would find a GPU; the driver is asked, as torch takes seconds."""
    if asked.engine.device != "auto":
        return asked.engine.device == "cuda"
    if "+cpu" in version("torch"):
        return False
    count = ctypes.c_int()
    with suppress(OSError, AttributeError):
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        if driver.cuInit(0) == 0:
            driver.cuDeviceGetCount(ctypes.byref(count))
    return count.value > 0
