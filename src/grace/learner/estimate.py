"""Estimate the time and memory of an update from a short trial on this machine."""

import sys
from dataclasses import dataclass
from typing import final

from grace.learner.budget import (
    coming_update,
    measure_speed,
    real_size,
    run_small_trial,
    trial_size,
    within_budget,
)
from grace.learner.learner import Learner


@final
@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The expected cost of an update on this machine."""

    images_per_second: float
    """Measured: images per second while one backbone trains, or through a frozen one."""
    seconds: float
    memory_bytes: int
    """Peak memory of the process."""
    is_frozen: bool = False
    """The backbone never trains: each image passes it once."""


def estimate(learner: Learner, num_new: int, num_train: int) -> Estimate:
    """Estimate an update from the method's plan and a trial of a few batches.

    A learner over a frozen backbone is tried without gradients. Where images are large, the trial's
    batch is smaller than a real one, and the memory grows by what each image between two and the
    trial's has taken.

    A phase of the plan costs its epochs × images × (training passes + a third of one for each pass
    through a frozen backbone). Branches of a shared trunk count as whole backbones, which is more
    than they cost. The learner does not change.

    Args:
        learner: the learner to update.
        num_new: number of classes that it does not know yet.
        num_train: number of training images of the update.
    """
    method, budget = learner.method, learner.settings.budget
    size, is_first = learner.size(), not learner.history
    coming = coming_update(
        method, num_new, num_train, is_first=is_first, num_backbones=size.num_backbones
    )
    with within_budget(method, budget, coming):
        plan = method.plan(coming)
    speed, more_bytes = _tried(learner, num_train)
    is_frozen = not method.settings.traits.trains_backbone
    channels, height, width = learner.shape
    most = max((phase.num_images for phase in plan), default=num_train)
    pixels = most * channels * height * width
    num_classes = len(learner.class_names) + num_new
    num_more = int(learner.settings.method.traits.grows_every_task and not coming.is_first)
    weights = method.state.bytes_after(max(2, num_classes), num_more)
    # Four times: the network, its backup, the network in training and its momenta.
    return Estimate(
        images_per_second=3 * speed if is_frozen else speed,
        seconds=sum(phase.passes for phase in plan) / speed,
        memory_bytes=_peak_bytes() + more_bytes + 2 * pixels + 4 * weights,
        is_frozen=is_frozen,
    )


def _tried(learner: Learner, num_train: int) -> tuple[float, int]:
    """Measure the training passes per second, and the bytes that a batch takes beyond a trial's."""
    trial = (learner.method, learner.trainer, learner.shape)
    tried, real = trial_size(*trial), min(real_size(*trial[:2]), num_train)
    if real <= tried:
        return measure_speed(*trial), 0
    run_small_trial(*trial, 2)
    few = _peak_bytes()
    speed = measure_speed(*trial)
    return speed, missing_bytes(_peak_bytes() - few, tried - 2, real - tried)


def missing_bytes(growth: int, num_more: int, num_missing: int) -> int:
    """Return the bytes of images that a trial left out.

    Args:
        growth: bytes that some more images have taken.
        num_more: these images.
        num_missing: those that were left out.
    """
    return growth * num_missing // num_more


def _peak_bytes() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
