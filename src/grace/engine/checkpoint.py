"""Snapshots of a phase: everything that its remaining epochs depend on.

Random draws are seeded by what they are for, so no generator state is stored.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Protocol, final

from pydantic import ConfigDict, Field, FiniteFloat
from torch import Tensor

Duration = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
"""Seconds, at most thirty years; records refuse longer durations."""
# In ``Rounds`` the name of a phase and a slash come before the loss.
_LossName = Annotated[str, Field(pattern=r"^(.*/)?[^\W\d]\w*$")]
_TENSOR = "a tensor"
"""Key of the name that stands for a tensor in a value that is saved."""


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

    __pydantic_config__: ClassVar = ConfigDict(arbitrary_types_allowed=True)
    epochs: Annotated[int, Field(ge=1)]
    tensors: Mapping[str, Tensor]
    losses: Mapping[_LossName, FiniteFloat]
    seconds: Duration
    scaler: Mapping[str, int | float]
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


def take_apart(value: Any, kept: dict[str, Tensor]) -> Any:  # noqa: ANN401 - JSON
    """Convert a value to JSON; put its tensors, of any shape, into ``kept``.

    Args:
        value: a tensor, ``None``, a boolean, number or text, or a mapping with text keys, list or
            tuple of such values.
        kept: receives the tensors by name.
    """
    match value:
        case Tensor():
            name = str(len(kept))
            kept[name] = value
            return {_TENSOR: name}
        case Mapping():
            assert all(isinstance(key, str) and key != _TENSOR for key in value), value.keys()
            return {key: take_apart(item, kept) for key, item in value.items()}
        case list() | tuple():
            return [take_apart(item, kept) for item in value]
    return value


def put_together(described: Any, kept: Mapping[str, Tensor]) -> Any:  # noqa: ANN401 - JSON
    """Undo ``take_apart``, with its tensors of any shape; a tuple becomes a list."""
    match described:
        case dict() if _TENSOR in described:
            return kept[described[_TENSOR]]
        case dict():
            return {key: put_together(item, kept) for key, item in described.items()}
        case list():
            return [put_together(item, kept) for item in described]
    return described
