"""The cost of phases and sweeps, for records. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final


@final
@dataclass
class Seconds:
    """The time of a phase or sweep, in seconds.

    On a GPU, work is queued: only ``total`` is exact, the other numbers say when it was queued.
    """

    data: float = 0.0
    frozen: float = 0.0
    training: float = 0.0
    total: float = 0.0
    earlier: float = 0.0
    """Part of the total that another process had spent: an interrupted one, or another run."""


@final
@dataclass
class WorkDone:
    """The cost of one phase or sweep of the current task."""

    name: str
    epochs: int
    images: int
    losses: Mapping[str, float] = field(default_factory=dict)
    seconds: Seconds = field(default_factory=Seconds)
    is_shared: bool = False
    """True if another learner trained it and this one took the result."""
    sha256: str = ""
    """Hash of the weights that it ended with, if other learners may share them."""

    @property
    def end(self) -> str:
        """Where a phase ended, in words: "phase 'grow', epoch 3"."""
        return f"phase '{self.name}', epoch {self.epochs}"
