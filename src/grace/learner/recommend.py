"""What a new learner gets: settings for its images, its ceiling and this machine. Torch-free.

What the numbers rest on stands in docs/learner/defaults.md.
"""

import ctypes
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any

from grace.base.errors import GraceError
from grace.data.folder_tree import scan
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import ConfigWarning, flatten, load_experiment, parse_overrides
from grace.settings.recipe import Recipe

HELD_OUT = 50
"""Default of ``memory.validation``; at most a fifth of a class's images are held out."""
MINUTES = 3.0
"""Default of ``budget.minutes``."""
RELATIVE_THRESHOLD = 1.2
"""Default of ``method.relative_threshold``: the level of saturations depends on backbone and images
far more than their rise does while a backbone fills."""
RECIPE = {"epochs": 120, "batch_size": 32, "schedule": "cosine"}
"""Of every phase. The epochs are those that a large budget has time for; a few hundred images need
many small steps rather than few large ones."""
PRETRAINED_RATE = 0.1
"""Factor on the learning rates if all of a pre-trained backbone trains."""
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


def recommended_settings(
    images: Path, overrides: Sequence[str]
) -> tuple[ExperimentSettings, Sequence[str]]:
    """Return the settings of a new learner of a folder of images, and why they are so."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        asked = new_settings("folder", overrides)
    has_gpu = _has_gpu(asked)
    chosen = recommend(asked, overrides, shorter_side(images), has_gpu=has_gpu)
    settings = new_settings("folder", overrides, chosen)
    memory, minutes = settings.memory, settings.budget.minutes
    pixels = f"{settings.data.image_size} pixels" if settings.data.image_size else "their own size"
    ceiling = "" if memory.max_mb is None else f" under {memory.max_mb:g} MB"
    kept = "as many old images as fit" if memory.size is None else f"up to {memory.size} old images"
    machine = "GPU" if has_gpu else "CPU"
    return settings, [
        f"network   {settings.backbone.name} at {pixels}, for a {machine}{ceiling}",
        f"training  {settings.method.name}, "
        + (f"about {minutes:g} minutes an update at most" if minutes else "all epochs"),
        f"memory    {kept}; up to {memory.validation} of each class held out",
    ]


def new_settings(
    experiment: str, overrides: Sequence[str], recommended: Sequence[str] = ()
) -> ExperimentSettings:
    """Resolve the settings of a new learner.

    Args:
        experiment: name or file of the experiment to start from.
        overrides: ``key.path=value`` texts over it.
        recommended: texts below those.

    Raises:
        GraceError: naming everything that is wrong.

    Warns:
        ConfigWarning: a setting has no effect.
    """
    given = _given(overrides)
    settings = load_experiment(experiment, [*recommended, *_implied(given), *overrides])
    memory, data = settings.memory, settings.data
    if not memory.validation and "memory.validation" not in given:
        memory = memory.model_copy(update={"validation": HELD_OUT})
    if "memory.max_mb" in given and "memory.size" not in given:
        memory = memory.model_copy(update={"size": None})
    data = data.model_copy(update={"channels": data.channels or 3})
    method, has_weights = settings.method, settings.backbone.weights != "none"
    if not has_weights and not method.traits.trains_backbone:
        raise GraceError(
            f"method {method.name} trains no backbone, and backbone.weights is none: its features "
            "would be random",
            "give backbone.weights a file of pre-trained weights",
        )
    if has_weights and method.traits.trains_backbone:
        lower = {
            name: recipe.model_copy(
                update={
                    "lr": PRETRAINED_RATE * recipe.lr,
                    "min_lr": PRETRAINED_RATE * recipe.min_lr,
                }
            )
            for name, recipe in method
            if isinstance(recipe, Recipe) and f"method.{name}.lr" not in given
        }
        method = method.model_copy(update=lower)
    return settings.model_copy(update={"memory": memory, "data": data, "method": method})


def _given(overrides: Sequence[str]) -> dict[str, Any]:
    """Return the value of every dotted path that overrides set."""
    return flatten(parse_overrides(overrides))


def _implied(given: Mapping[str, Any]) -> Iterator[str]:
    """Yield settings that follow from given ones; they come below them.

    A learner with pre-trained weights and no word on what trains freezes its backbone: that takes
    seconds, forgets nothing, and needs the fewest images.
    """
    has_weights = given.get("backbone.weights", "none") != "none"
    if has_weights and str(given.get("backbone.name", "")).startswith("timm/"):
        yield "backbone.input_size=model"
    train = given.get("backbone.train", "frozen" if has_weights else "all")
    if train == "frozen" and "method.name" not in given:
        yield from ("method=probe", "backbone.train=frozen")


def recommend(
    asked: ExperimentSettings, overrides: Sequence[str], shortest: int | None, *, has_gpu: bool
) -> list[str]:
    """Recommend ``key.path=value`` texts for a new learner.

    Args:
        asked: its settings without a recommendation.
        overrides: what the user gave, which stays.
        shortest: shorter side in pixels of the median image; ``None``: no image can be read.
        has_gpu: training runs on a GPU.
    """
    given, wanted = _given(overrides), dict[str, object]()
    if "backbone.weights" not in given:
        wanted["backbone.name"] = _backbone(asked.memory.max_mb, has_gpu=has_gpu)
        # Never more pixels than the images have.
        has_room = asked.memory.max_mb is None or asked.memory.max_mb >= 50
        most = 64 if has_gpu and has_room else 32
        wanted["data.image_size"] = most if shortest is None else max(8, min(most, shortest))
        for name, recipe in asked.method:
            prefix = f"method.{name}."
            own = {path.removeprefix(prefix) for path in given if path.startswith(prefix)}
            others = own - {"epochs", "batch_size", "lr", "weight_decay"}
            # Who chooses a schedule or an optimiser makes the whole recipe.
            if isinstance(recipe, Recipe) and recipe.optimiser == "sgd" and not others:
                wanted |= {f"{prefix}{key}": value for key, value in RECIPE.items()}
    lengths = ("budget.*", "method.*.epochs")
    says_how_long = any(fnmatchcase(path, pattern) for path in given for pattern in lengths)
    if not says_how_long and asked.method.traits.trains_backbone:
        wanted["budget.minutes"] = MINUTES
    says_when = given.keys() & {"method.threshold", "method.expand_at"}
    if "relative_threshold" in type(asked.method).model_fields and not says_when:
        wanted["method.relative_threshold"] = RELATIVE_THRESHOLD
    return [f"{path}={value}" for path, value in wanted.items() if path not in given]


def _backbone(max_mb: float | None, *, has_gpu: bool) -> str:
    """Choose the largest backbone that leaves most of the ceiling to growth and images."""
    room = float("inf") if max_mb is None else 1e6 * max_mb / 5
    # On a CPU, twelve layers more cost more accuracy in epochs than they bring.
    able = (name for name in ("resnet18", "resnet32") if has_gpu and room >= BACKBONE_BYTES[name])
    return next(able, "resnet20")


def shorter_side(images: Path) -> int | None:
    """Return the median of the images' shorter sides in pixels; ``None``: none can be read."""
    # It imports numpy, which --help does not need.
    from grace.data.decoding import upright_size

    files = [file for file in scan(images).files if not file.is_test]
    sides: list[int] = []
    for file in files[:: max(1, len(files) // NUM_SAMPLED)]:
        with suppress(GraceError):
            sides.append(min(upright_size(file.path)))
    return sorted(sides)[len(sides) // 2] if sides else None


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
