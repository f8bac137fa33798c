"""Short trials of what is faster on this machine; the user's cache folder keeps their outcomes.

What they choose changes the last digits of results. So each trial is made once: equal runs on one
machine read its outcome, and choose the same.
"""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from grace.base import strict_json
from grace.base.atomic import sync_folder, unfinished
from grace.base.errors import DamagedError
from grace.base.files import read_small
from grace.base.machine import cache_folder
from grace.engine.device import can_compile, is_long
from grace.engine.rounding import Rounding
from grace.learner.budget import measure_speed
from grace.learner.model import Model
from grace.settings.experiment import EngineSettings, ExperimentSettings
from grace.settings.recipe import Recipe

FOLDER = "trials"
"""In the cache folder: a small file for each trial. If one is deleted, its trial is made again."""

MIN_GAIN = 1.05
"""A smaller gain is noise, or is spent on compiling."""


def fastest_engine(settings: ExperimentSettings, model: Model, num_images: int) -> EngineSettings:
    """Return the engine's settings with what trials on this machine showed to be faster.

    ``threads=None`` becomes 1 for images below 32×32 pixels that gain nothing from all threads.
    ``compile="auto"`` becomes False if a phase is long enough to be compiled and gains nothing.

    Args:
        settings: of the run.
        model: made with these settings; it does not change.
        num_images: the most images that a phase may train on.
    """
    engine, all_threads = settings.engine, torch.get_num_threads()
    device = model.trainer.device.torch_device.type
    recipes = [item for item in vars(settings.method).values() if isinstance(item, Recipe)]
    size = recipes[0].batch_size if recipes else 128

    def gain(name: str, now: dict[str, Any], then: dict[str, Any]) -> float | None:
        """Compare two settings; ``name``, the settings and the machine identify the trial."""
        facts = (name, Rounding.of(model.trainer.device), torch.__version__, settings.backbone)
        key = hashlib.sha256(repr((*map(str, facts), model.shape, size)).encode()).hexdigest()

        def measure() -> float:
            model.trainer.progress.sweep_started(f"trial of {name}", 2 * size)
            before, after = (_speed(settings, model, engine, changes) for changes in (now, then))
            return after / before

        return _remembered(f"{name}-{key[:32]}.json", measure)

    try:
        is_small = model.enlarge is None and model.shape[1] * model.shape[2] < 32 * 32
        if engine.threads is None and device == "cpu" and all_threads > 1 and is_small:
            found = gain("threads", {"threads": 1}, {"threads": all_threads})
            is_one_enough = found is not None and found < MIN_GAIN
            torch.set_num_threads(1 if is_one_enough else all_threads)
            engine = engine.model_copy(update={"threads": 1 if is_one_enough else None})
        epochs = max((recipe.epochs for recipe in recipes), default=0)
        is_worth_it = engine.compile == "auto" and is_long(epochs, num_images, model.shape)
        if is_worth_it and can_compile(device):
            found = gain("compile", {"compile": False}, {"compile": True})
            if found is not None and found < MIN_GAIN:
                engine = engine.model_copy(update={"compile": False})
    finally:
        torch.set_num_threads(all_threads)
    return engine


def _speed(
    settings: ExperimentSettings, model: Model, engine: EngineSettings, changes: dict[str, Any]
) -> float:
    """Train a throw-away backbone with changed engine settings; return images per second."""
    settings = settings.model_copy(update={"engine": engine.model_copy(update=changes)})
    trial = Model(settings, model.shape, model.mean, model.std, is_saved=True)
    return measure_speed(trial.state.method, trial.trainer, model.shape)


def _remembered(name: str, measure: Callable[[], float]) -> float | None:
    """Return a trial's outcome, measured if it is not known; ``None``: it cannot be kept."""
    try:
        path = cache_folder(FOLDER) / name
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home folder.
        return None
    known = _read(path)
    if known is None and os.access(path.parent, os.W_OK):
        document = strict_json.dump({"gain": round(measure(), 3)})
        with suppress(OSError):
            _write_first(path, document)
        known = _read(path)
    return known


def _read(path: Path) -> float | None:
    with suppress(DamagedError, OSError):
        document = strict_json.parse(read_small(path, f"'{path}'", 4096), f"'{path}'")
        gain = document.get("gain") if isinstance(document, dict) else None
        return gain if isinstance(gain, float) else None
    return None


def _write_first(path: Path, data: bytes) -> None:
    """Write a file whole, unless another process wrote it meanwhile; replace a damaged one."""
    beside = unfinished(path)
    try:
        beside.write_bytes(data)
        if path.exists() and _read(path) is None:
            beside.replace(path)
        else:
            with suppress(FileExistsError):
                os.link(beside, path)
    finally:
        beside.unlink(missing_ok=True)
    sync_folder(path.parent)
