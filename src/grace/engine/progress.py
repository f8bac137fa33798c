"""What the engine tells whoever watches."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, final

if TYPE_CHECKING:
    from grace.engine.phase import Phase, Work


class Progress(Protocol):
    """Receives the events of a run; every loss is a mean over its epoch."""

    def task_started(self, number: int, total: int, class_names: Sequence[str]) -> None:
        """Task ``number`` of ``total`` (1-based) begins, with these new classes."""
        return

    def waiting(self, what: str) -> None:
        """Something of unknown length goes on, such as "reading"."""
        return

    def update_started(self, number: int, class_names: Sequence[str]) -> None:
        """Update ``number`` (1-based) of a saved learner begins, with these new classes."""
        return

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

    def task_finished(self, line: Mapping[str, Any]) -> None:
        """A task is over; ``line`` is its line of the record."""
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
    """Hears everything and says nothing."""
