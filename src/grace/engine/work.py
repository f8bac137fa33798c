"""What work costs, for records. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final


@final
@dataclass
class Seconds:
    """Where the time of a phase or sweep went, in seconds.

    On a GPU, work is queued: the parts tell when it was queued, only ``total`` is exact.
    """

    data: float = 0.0
    frozen: float = 0.0
    training: float = 0.0
    total: float = 0.0
    earlier: float = 0.0
    """Of the total, what another process had spent: it was interrupted, or shares its result."""


@final
@dataclass
class WorkDone:
    """What one phase or sweep of the current task cost, for the record."""

    name: str
    epochs: int
    images: int
    losses: Mapping[str, float] = field(default_factory=dict)
    seconds: Seconds = field(default_factory=Seconds)
    is_shared: bool = False
    """Whether another learner did it, whose outcome was taken over."""
