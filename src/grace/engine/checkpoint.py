"""Snapshots of a phase: what its remaining epochs depend on, and nothing else.

Random draws are seeded by what they are for, so no generator state belongs to it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, final

from torch import Tensor


@final
@dataclass(frozen=True)
class Snapshot:
    """A phase at the end of an epoch.

    Args:
        epochs: epochs done; all of the recipe's once the phase is over.
        tensors: weights and buffers of what trains, and the optimiser's momenta while epochs are
            left.
        losses: means over the last epoch done.
        seconds: spent so far, in all.
        scaler: state of the gradient scaler (float16 only).
        is_shared: whether it is another learner's, that had the same phase to do.
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
    """What a sweep gave, where it is not done again.

    Args:
        value: its reducer's value.
        seconds: that it took.
        buffers: what a gradient sweep moved, as it left them.
    """

    value: Any
    seconds: float
    buffers: Mapping[str, Tensor]


class SnapshotStore(Protocol):
    """Keeps snapshots of one phase, where a killed process finds them again."""

    def saved(self) -> Snapshot | None:
        """Return the phase's last snapshot, if there is one."""

    def offer(self, take: Callable[[], Snapshot], *, is_last: bool) -> None:
        """Store a snapshot, taken by ``take()``, if one is due; the last epoch's always is."""
