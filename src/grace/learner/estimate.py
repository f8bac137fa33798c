"""Estimate the time and memory of an update from a short trial on this machine."""

import sys
import time
from dataclasses import dataclass
from typing import final

import torch

from grace.configs.recipe import Recipe
from grace.data.images import LabelledImages, TensorImages
from grace.engine.phase import Part, Phase
from grace.learner.learner import Learner
from grace.methods.classification import classification
from grace.methods.planning import Coming


@final
@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The expected cost of an update on this machine."""

    images_per_second: float
    """Measured: images per second while one backbone trains."""
    seconds: float
    memory_bytes: int
    """Peak memory of the process."""


def estimate(learner: Learner, num_new: int, num_train: int) -> Estimate:
    """Estimate an update from the method's plan and a trial of a few batches.

    A phase of the plan costs its epochs × images × (training passes + a third of one for each pass
    through a frozen backbone). Branches of a shared trunk count as whole backbones, which is more
    than they cost. The learner does not change.

    Args:
        learner: the learner to update.
        num_new: number of classes that it does not know yet.
        num_train: number of training images of the update.
    """
    method = learner.method
    coming = Coming(
        is_first=not learner.history,
        num_new=num_new,
        num_images=num_train,
        num_kept=len(method.memory),
        num_seen=sum(method.memory.original_counts.values()),
        num_backbones=learner.size().num_backbones,
    )
    plan = method.plan(coming)
    images_per_second = _trial(learner)
    channels, height, width = learner.shape
    most = max((phase.num_images for phase in plan), default=num_train)
    pixels = most * channels * height * width
    num_classes = len(learner.class_names) + num_new
    num_more = int(learner.settings.method.traits.grows_every_task and not coming.is_first)
    weights = method.state.bytes_after(max(2, num_classes), num_more)
    # Four times: the network, its backup, the network in training and its momenta.
    return Estimate(
        images_per_second=images_per_second,
        seconds=sum(phase.passes for phase in plan) / images_per_second,
        memory_bytes=_peak_bytes() + 2 * pixels + 4 * weights,
    )


def _trial(learner: Learner) -> float:
    """Train a throw-away backbone on blank images twice; return images per second of run two."""
    recipes = [item for item in vars(learner.settings.method).values() if isinstance(item, Recipe)]
    batch_size = recipes[0].batch_size if recipes else 128
    factory = learner.method.factory
    backbone = factory.backbone("trial")
    head = factory.linear(backbone.feature_dim, 2, "trial")
    pixels = torch.zeros((2 * batch_size, *learner.shape), dtype=torch.uint8)
    labels = torch.arange(len(pixels)) % 2

    phase = Phase(
        name="trial",
        parts={"backbone": Part(backbone), "head": Part(head, ["backbone"])},
        objective=classification,
        recipe=Recipe(epochs=1, batch_size=batch_size, lr=1e-3),
        data=LabelledImages(TensorImages(pixels), labels),
    )
    learner.trainer.start_task(0)
    learner.trainer.run(phase)  # The first steps also set things up.
    started = time.perf_counter()
    learner.trainer.run(phase)
    return len(pixels) / (time.perf_counter() - started)


def _peak_bytes() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
