"""Snapshots of a phase: everything that its remaining epochs depend on.

Random draws are seeded by what they are for, so no generator state is stored.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

from torch import Tensor


@final
@dataclass(frozen=True)
class Snapshot:
    """The state of a phase at the end of an epoch.

    Args:
        epochs: epochs done; all of the recipe's once the phase is over.
        tensors: weights and buffers that train, of any shape; the optimiser's momenta and the
            means of weights too while epochs are left.
        losses: means over the last epoch done.
        seconds: time spent so far.
        scaler: state of the gradient scaler (float16 only).
        is_shared: True if another learner trained this same phase.
    """

    epochs: int
    tensors: Mapping[str, Tensor]
    losses: Mapping[str, float]
    seconds: float
    scaler: Mapping[str, float]
    is_shared: bool = False


@final
@dataclass(frozen=True)
class SweepResult:
    """The saved result of a sweep, so that it need not run again.

    Args:
        value: its reducer's value.
        seconds: time that it took.
        buffers: buffers that a gradient sweep changed, of any shape, as it left them.
    """

    value: Any
    seconds: float
    buffers: Mapping[str, Tensor]


class SnapshotStore(Protocol):
    """Stores snapshots of one phase, so that a killed run can go on from the last one."""

    is_shared: bool
    """``True`` if other learners take the phase's result from here."""

    def saved(self) -> Snapshot | None:
        """Return the phase's last snapshot; ``None`` if there is none."""

    def offer(self, take: Callable[[], Snapshot], *, is_last: bool) -> None:
        """Store a snapshot, taken by ``take()``, if one is due; the last epoch's always is."""
