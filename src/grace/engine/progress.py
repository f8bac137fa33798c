"""The events of phases and sweeps, for whoever shows or records them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, final

if TYPE_CHECKING:
    from grace.engine.phase import Phase, Work


class Progress(Protocol):
    """Receives the events of training; every loss is a mean over its epoch."""

    def phase_started(self, name: str, epochs: int, images: int) -> None:
        """A phase begins."""
        return

    def epoch_finished(
        self, name: str, epoch: int, epochs: int, losses: Mapping[str, float], lr: float
    ) -> None:
        """Epoch ``epoch`` (1-based) of a phase is over."""
        return

    def phase_finished(self, name: str, seconds: float) -> None:
        """A phase is over."""
        return

    def sweep_started(self, name: str, images: int) -> None:
        """A pass over data without training begins."""
        return


class Observer(Protocol):
    """Follows the work that methods ask for; it changes nothing."""

    def work_started(self, work: "Work") -> None:
        """A phase or sweep begins."""
        return

    def epoch_finished(self, phase: "Phase", epoch: int, losses: Mapping[str, float]) -> None:
        """Epoch ``epoch`` (1-based) of a phase is over."""
        return

    def work_finished(self, work: "Work", result: Any) -> None:  # noqa: ANN401 - a sweep's value is its reducer's
        """A phase or sweep is over, or its result was found; what the method gets is ``result``."""
        return


@final
class Silence(Progress):
    """Ignores every event."""
