"""Estimate the time and memory of an update from a short trial on this machine."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from grace.engine.phase import Work
from grace.learner.budget import (
    coming_update,
    frozen_trial,
    measure_speed,
    real_size,
    training_trial,
    trial_size,
    within_budget,
)
from grace.learner.learner import Learner

MEMORY_SECONDS = 2.0
"""Seconds for a batch that shows the memory. More: more of a large batch passes."""


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

    A learner over a frozen backbone is tried without gradients. For the memory, one real batch
    passes where the speed's trial had a smaller one: in training, and of a sweep. If that would
    take long, it is part of a batch, and the memory grows with the images that are left out.

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
    speed, peak = _tried(learner, num_train)
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
        memory_bytes=peak + 2 * pixels + 4 * weights,
        is_frozen=is_frozen,
    )


def _tried(learner: Learner, num_train: int) -> tuple[float, int]:
    """Measure the training passes per second, and the peak memory with batches of full size."""
    method, trainer, shape = learner.method, learner.trainer, learner.shape
    tried, speed = trial_size(method, trainer, shape), measure_speed(method, trainer, shape)
    peak = most = _peak_bytes()
    batches: list[tuple[Callable[..., Work], int, float]]
    batches = [(frozen_trial, trainer.eval_batch_size, 3 * speed)]
    if method.settings.traits.trains_backbone:
        batches.insert(0, (training_trial, real_size(method, trainer), speed))
    for make, size, images_per_second in batches:
        real = min(size, num_train)
        count = min(real, max(tried + tried // 2 + 1, int(images_per_second * MEMORY_SECONDS)))
        if count > tried:
            trainer.run(make(method, shape, count))
            before, peak = peak, _peak_bytes()
            most = max(most, peak + (peak - before) * (real - count) // (count - tried))
    return speed, most


def _peak_bytes() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
