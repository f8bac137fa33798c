"""Scale the epochs of an update to a budget of image passes.

A pass is a training pass of one image through one backbone. How many passes an update may take is
measured once, when the learner is made, and saved: equal updates get equal epochs, also after an
interruption or on another machine.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from grace.data.images import LabelledImages, TensorImages
from grace.engine.phase import Part, Phase
from grace.engine.trainer import Trainer
from grace.methods.classification import classification
from grace.methods.method import Method
from grace.methods.planning import Coming
from grace.methods.preprocessing import input_shape
from grace.settings.experiment import BudgetSettings
from grace.settings.method import AnyMethodSettings
from grace.settings.recipe import Recipe, merge

FEWEST_EPOCHS = 5
"""Fewer epochs would leave images hardly learnt: then the update takes longer than its budget."""

TRIAL_PIXELS = 128 * 64 * 64
"""Most pixels of the timed batch on a CPU. More: large images are timed longer."""


def needs_passes(method: AnyMethodSettings, budget: BudgetSettings) -> bool:
    """Return ``True`` if the minutes of a budget must be turned into passes."""
    recipes = [recipe for _, recipe in method if isinstance(recipe, Recipe)]
    is_scalable = method.traits.trains_backbone and any(
        recipe.epochs > FEWEST_EPOCHS for recipe in recipes
    )
    return budget.minutes is not None and budget.passes is None and is_scalable


@contextmanager
def within_budget(method: Method, budget: BudgetSettings, coming: Coming) -> Iterator[None]:
    """Let a method run with as many epochs as its budget allows.

    All recipes are scaled by one percentage, the highest that fits; their epochs are the most.

    Args:
        method: the method; its settings are put back at the end.
        budget: its passes; without them nothing is scaled.
        coming: the update.
    """
    full = method.settings
    try:
        if budget.passes is not None:
            for percent in range(100, 0, -1):
                method.settings = _scaled(full, percent)
                if sum(phase.passes for phase in method.plan(coming)) <= budget.passes:
                    break
        yield
    finally:
        method.settings = full


def measured_passes(
    method: Method, trainer: Trainer, shape: tuple[int, int, int], minutes: float
) -> float:
    """Time a batch of blank images; return the training passes of some minutes.

    On a CPU the time of this process counts, so that other processes hardly change the result. It
    is rounded to a power of two, down more than up (0.84 to 1.68 times the result), so that equal
    calls on one machine nearly always find the same.

    Args:
        method: the method that will learn; it does not change.
        trainer: trains a throw-away backbone.
        shape: (C, H, W) of the images.
        minutes: of training.
    """
    on_gpu = trainer.device.torch_device.type == "cuda"
    clock = time.perf_counter if on_gpu else time.process_time
    share = 1 if on_gpu else torch.get_num_threads()
    count = next(recipe.batch_size for _, recipe in method.settings if isinstance(recipe, Recipe))
    if not on_gpu:
        _, height, width = input_shape(method.factory.settings.backbone, shape)
        count = min(count, max(8, TRIAL_PIXELS // (height * width)))

    def seconds(num_batches: int) -> float:
        trial = _trial(method, shape, count, num_batches)
        started = clock()
        trainer.run(trial)
        return max(1e-6, (clock() - started) / share)

    trainer.start_task(0)
    first = seconds(1)  # It also sets things up.
    speed = count / first if first > 2 else 4 * count / min(seconds(4), seconds(4))
    return float(2.0 ** math.floor(math.log2(60 * minutes * speed) + 0.25))


def _trial(method: Method, shape: tuple[int, int, int], batch_size: int, num_batches: int) -> Phase:
    """Make a phase that trains what the method trains, beside the trunk that stays frozen."""
    factory = method.factory
    backbone, parts = factory.backbone("trial"), dict[str, Part]()
    source = "images"
    if factory.freezes_trunk:
        network = factory.first_network(2, backbone, "trial")
        assert network.trunk is not None
        backbone, source = network.backbone, "trunk"
        parts["trunk"] = Part(network.trunk, trains=False)
    head = factory.linear(backbone.feature_dim, 2, "trial")
    count = num_batches * batch_size
    pixels = torch.zeros((count, *shape), dtype=torch.uint8)
    return Phase(
        name="trial",
        parts=parts | {"backbone": Part(backbone, [source]), "head": Part(head, ["backbone"])},
        objective=classification,
        recipe=Recipe(epochs=1, batch_size=batch_size, lr=1e-3),
        data=LabelledImages(TensorImages(pixels), torch.arange(count) % 2),
    )


def _scaled(full: AnyMethodSettings, percent: int) -> AnyMethodSettings:
    """Return settings with a percentage of the epochs of every recipe."""
    changed: dict[str, Recipe] = {}
    for name, recipe in full:
        if isinstance(recipe, Recipe):
            epochs = min(recipe.epochs, max(FEWEST_EPOCHS, recipe.epochs * percent // 100))
            warmup = -(-recipe.warmup_epochs * epochs // recipe.epochs)
            average = -(-recipe.average_epochs * epochs // recipe.epochs)
            given = {
                "epochs": epochs,
                "warmup_epochs": min(warmup, epochs - 1),
                "average_epochs": average,
            }
            changed[name] = Recipe(**merge(recipe.model_dump(), given))
    return full.model_copy(update=changed)
