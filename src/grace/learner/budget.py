"""Scale the epochs of an update to a time budget.

The scale follows from the settings and the numbers of images alone: equal updates get equal epochs,
also after an interruption or on another machine.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from grace.data.images import LabelledImages, TensorImages
from grace.engine.parts import frozen
from grace.engine.phase import Part, Phase, Sweep, Work
from grace.engine.reducers import Collect
from grace.engine.trainer import Trainer
from grace.methods.classification import classification
from grace.methods.method import Method
from grace.methods.planning import Coming
from grace.nn.preprocessing import input_shape
from grace.settings.experiment import BudgetSettings
from grace.settings.methods import AnyMethodSettings
from grace.settings.recipe import Recipe, completed

FEWEST_EPOCHS = 5
"""Fewer epochs would leave images hardly learnt: then the update takes longer than its budget."""

TRIAL_PIXELS = 128 * 64 * 64
"""Most pixels of a training trial's batch on a CPU; a frozen backbone, which takes a third of the
time, gets three times as many. More: large images are measured longer."""

LONG_SECONDS = 0.5
"""A trial of a longer batch is of one batch instead of two."""

MOST_SECONDS = 8 * LONG_SECONDS
"""A trial is not repeated after as many seconds."""


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
    """Try a throw-away backbone on blank images; return the training passes per second.

    A frozen backbone is not trained: its passes count as a third of a training pass, as in a plan.
    On a CPU the time of this process counts, so that other processes hardly change the result.

    Args:
        method: the method that will learn; it does not change.
        trainer: carries out the trial.
        shape: (C, H, W) of the images.
    """
    count = trial_size(method, trainer, shape)
    on_gpu = trainer.device.torch_device.type == "cuda"
    clock, share = (time.perf_counter, 1) if on_gpu else (time.process_time, _num_threads())

    def timed(trial: Work) -> float:
        started = clock()
        trainer.run(trial)
        return (clock() - started) / share

    trainer.start_task(0)
    if not method.settings.traits.trains_backbone:
        sweep = frozen_trial(method, shape, count)
        timed(sweep)  # It also sets things up.
        return fastest(lambda: timed(sweep), count) / 3
    one, two = (training_trial(method, shape, count, num_batches) for num_batches in (1, 2))
    first = timed(one)
    if first > MOST_SECONDS and trainer.device.compile is not True:
        return count / first
    if timed(one) > LONG_SECONDS:
        return fastest(lambda: timed(one), count)
    return fastest(lambda: timed(two), 2 * count)


def fastest(trial: Callable[[], float], num_images: int) -> float:
    """Repeat a trial up to four times, but not for long; return the most images per second.

    Args:
        trial: passes the images once, and returns its seconds.
        num_images: of the trial.
    """
    taken: list[float] = []
    while len(taken) < 4 and sum(taken) < MOST_SECONDS:
        taken.append(trial())
    return num_images / max(min(taken), 1e-6)


def trial_size(method: Method[Any], trainer: Trainer, shape: tuple[int, int, int]) -> int:
    """Return the images of a trial's batch: as many as of a real one, but fewer if they are large.

    On a GPU they are as many: few images would not fill it, and all take no time.

    Args:
        method: the method that will learn.
        trainer: carries out the trial.
        shape: (C, H, W) of the images.
    """
    count = real_size(method, trainer)
    if trainer.device.torch_device.type == "cuda":
        return count
    _, height, width = input_shape(method.factory.settings.backbone, shape)
    most_pixels = TRIAL_PIXELS * (1 if method.settings.traits.trains_backbone else 3)
    return min(count, max(8, most_pixels // (height * width)))


def real_size(method: Method[Any], trainer: Trainer) -> int:
    """Return the images of a batch that passes through the backbone."""
    if not method.settings.traits.trains_backbone:
        return trainer.eval_batch_size
    recipes = [item for item in vars(method.settings).values() if isinstance(item, Recipe)]
    return recipes[0].batch_size if recipes else 128


def frozen_trial(method: Method[Any], shape: tuple[int, int, int], count: int) -> Sweep:
    """Make a sweep over blank images with a throw-away backbone.

    Args:
        method: the method that will learn; it does not change.
        shape: (C, H, W) of the images.
        count: number of the images.
    """
    data = _blank(shape, count)
    backbone = method.factory.backbone("trial")
    return Sweep(name="trial", parts=frozen([backbone]), data=data, reducer=Collect())


def training_trial(
    method: Method[Any], shape: tuple[int, int, int], batch_size: int, num_batches: int = 1
) -> Phase:
    """Make a phase that trains what the method trains, beside the trunk that stays frozen.

    Args:
        method: the method that will learn; it does not change.
        shape: (C, H, W) of the images.
        batch_size: blank images in a batch.
        num_batches: number of batches.
    """
    factory = method.factory
    backbone, parts = factory.backbone("trial"), dict[str, Part]()
    source = "images"
    if factory.freezes_trunk:
        network = factory.first_network(2, backbone, "trial")
        assert network.trunk is not None
        backbone, source = network.backbone, "trunk"
        parts["trunk"] = Part(network.trunk, trains=False)
    head = factory.linear(backbone.feature_dim, 2, "trial")
    return Phase(
        name="trial",
        parts=parts | {"backbone": Part(backbone, [source]), "head": Part(head, ["backbone"])},
        objective=classification,
        recipe=Recipe(epochs=1, batch_size=batch_size, lr=1e-3),
        data=_blank(shape, num_batches * batch_size),
    )


def _blank(shape: tuple[int, int, int], count: int) -> LabelledImages:
    pixels = torch.zeros((count, *shape), dtype=torch.uint8)
    return LabelledImages(TensorImages(pixels), torch.arange(count) % 2)


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
