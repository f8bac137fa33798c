"""What the engine tells whoever watches."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final


class Progress(Protocol):
    """Receives the events of a run; every loss is a mean over its epoch."""

    def task_started(self, number: int, total: int, class_names: Sequence[str]) -> None:
        """Task ``number`` of ``total`` (1-based) begins, with these new classes."""
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


@final
class Silence(Progress):
    """Hears everything and says nothing."""
