"""Scale the epochs of an update to a time budget.

The scale follows from the settings and the numbers of images alone: equal updates get equal epochs,
also after an interruption or on another machine.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from grace.configs.experiment import BudgetSettings
from grace.configs.methods import AnyMethodSettings
from grace.configs.recipe import Recipe, completed
from grace.data.images import LabelledImages, TensorImages
from grace.engine.phase import Part, Phase
from grace.engine.trainer import Trainer
from grace.methods.classification import classification
from grace.methods.method import Method
from grace.methods.planning import Coming

FEWEST_EPOCHS = 5
"""Fewer epochs would leave images hardly learnt: then the update takes longer than its budget."""


def is_scalable(method: AnyMethodSettings, budget: BudgetSettings) -> bool:
    """Return ``True`` if the budget may change the epochs of a recipe."""
    return budget.minutes is not None and any(
        isinstance(recipe, Recipe) and name not in budget.fixed and recipe.epochs > FEWEST_EPOCHS
        for name, recipe in method
    )


@contextmanager
def within_budget(method: Method[Any], budget: BudgetSettings, coming: Coming) -> Iterator[None]:
    """Let a method run with as many epochs as its budget has time for.

    All recipes are scaled by one percentage, the highest that fits.

    Args:
        method: the method; its settings are put back at the end.
        budget: minutes and speed; without them nothing is scaled.
        coming: the update.
    """
    full = method.settings
    try:
        if budget.minutes is not None and budget.speed is not None:
            for percent in range(100, 0, -1):
                method.settings = _scaled(full, budget, percent)
                if planned_passes(method, coming) <= 60 * budget.minutes * budget.speed:
                    break
        yield
    finally:
        method.settings = full


def expected_seconds(method: Method[Any], budget: BudgetSettings, coming: Coming) -> float | None:
    """Estimate the training time of an update; ``None``: the machine's speed was not measured.

    Args:
        method: the method as it is before the update.
        budget: minutes and speed.
        coming: the update.
    """
    if budget.speed is None:
        return None
    with within_budget(method, budget, coming):
        return planned_passes(method, coming) / budget.speed


def planned_passes(method: Method[Any], coming: Coming) -> float:
    """Return the cost of an update, in training passes of one image through one backbone."""
    return sum(phase.passes for phase in method.plan(coming))


def coming_update(
    method: Method[Any], num_new: int, num_images: int, *, is_first: bool, num_backbones: int
) -> Coming:
    """Describe the coming update of a method, before its images are learnt.

    Args:
        method: the method as it is before the update.
        num_new: classes that it does not know yet.
        num_images: training images of the update.
        is_first: nothing has been learnt yet.
        num_backbones: backbones of its network.
    """
    return Coming(
        is_first=is_first,
        num_new=num_new,
        num_images=num_images,
        num_kept=len(method.memory),
        num_seen=sum(method.memory.original_counts.values()),
        num_backbones=num_backbones,
    )


def measure_speed(method: Method[Any], trainer: Trainer, shape: tuple[int, int, int]) -> float:
    """Train a throw-away backbone on blank images; return its images per second.

    On a CPU the time of this process counts, so that other processes hardly change the result.

    Args:
        method: the method that will be trained; it does not change.
        trainer: carries out the trial.
        shape: (C, H, W) of the images.
    """
    recipes = [item for item in vars(method.settings).values() if isinstance(item, Recipe)]
    batch_size = recipes[0].batch_size if recipes else 128
    backbone = method.factory.backbone("trial")
    head = method.factory.linear(backbone.feature_dim, 2, "trial")
    pixels = torch.zeros((2 * batch_size, *shape), dtype=torch.uint8)
    phase = Phase(
        name="trial",
        parts={"backbone": Part(backbone), "head": Part(head, ["backbone"])},
        objective=classification,
        recipe=Recipe(epochs=1, batch_size=batch_size, lr=1e-3),
        data=LabelledImages(TensorImages(pixels), torch.arange(len(pixels)) % 2),
    )
    on_gpu = trainer.device.torch_device.type == "cuda"
    clock, share = (time.perf_counter, 1) if on_gpu else (time.process_time, _num_threads())
    trainer.start_task(0)
    trainer.run(phase)  # The first steps also set things up.
    seconds = math.inf
    for _ in range(4):
        started = clock()
        trainer.run(phase)
        seconds = min(seconds, (clock() - started) / share)
    return len(pixels) / max(seconds, 1e-6)


def rounded_speed(images_per_second: float) -> float:
    """Round a speed to a power of two, so that equal calls on one machine find the same.

    It is rounded down more than up (0.84 to 1.68 times the result): a budget is kept rather than
    used up.
    """
    return float(2.0 ** math.floor(math.log2(images_per_second) + 0.25))


def _num_threads() -> int:
    return torch.get_num_threads()


def _scaled(full: AnyMethodSettings, budget: BudgetSettings, percent: int) -> AnyMethodSettings:
    """Return settings with a percentage of the epochs of every recipe that is not fixed."""
    changed: dict[str, Recipe] = {}
    for name, recipe in full:
        if isinstance(recipe, Recipe) and name not in budget.fixed:
            epochs = min(recipe.epochs, max(FEWEST_EPOCHS, recipe.epochs * percent // 100))
            warmup = -(-recipe.warmup_epochs * epochs // recipe.epochs)
            average = -(-recipe.average_epochs * epochs // recipe.epochs)
            given = {
                "epochs": epochs,
                "warmup_epochs": min(warmup, epochs - 1),
                "average_epochs": average,
            }
            changed[name] = Recipe(**completed(given, recipe))
    return full.model_copy(update=changed)
