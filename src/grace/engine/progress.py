"""Callbacks for those who follow a run: progress for people, observers for programs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, final

if TYPE_CHECKING:
    from grace.engine.phase import Phase, Work


class Progress(Protocol):
    """Gets the events of training, to show them to people."""

    def waiting(self, what: str) -> None:
        """Called when work of unknown length begins, such as "reading"."""
        return

    def update_started(self, class_names: Sequence[str]) -> None:
        """Called when an update of a learner begins, with its new classes."""
        return

    def update_planned(self, passes: Mapping[str, float]) -> None:
        """Called before an update trains.

        Args:
            passes: the expected cost of each phase by its name, in the order of the phases: the
                training passes of one image through one backbone.
        """
        return

    def phase_started(self, name: str, epochs: int, images: int) -> None:
        """Called when a phase begins.

        Args:
            name: of the phase.
            epochs: that it will train for.
            images: that it trains on.
        """
        return

    def epoch_finished(
        self, name: str, epoch: int, epochs: int, losses: Mapping[str, float], lr: float
    ) -> None:
        """Called after every epoch.

        Args:
            name: of the phase.
            epoch: that is over, from 1.
            epochs: of the phase in all.
            losses: mean of every loss over the epoch.
            lr: learning rate of the epoch.
        """
        return

    def phase_finished(self, name: str, seconds: float) -> None:
        """Called when a phase is over."""
        return

    def sweep_started(self, name: str, images: int) -> None:
        """Called when a pass over data without training begins."""
        return


class Observer(Protocol):
    """Follows the work that methods yield; it changes nothing."""

    def work_started(self, work: "Work") -> None:
        """Called when a phase or sweep begins."""
        return

    def epoch_finished(self, phase: "Phase", epoch: int, losses: Mapping[str, float]) -> None:
        """Called after every epoch.

        Args:
            phase: that the epoch belongs to.
            epoch: that is over, from 1.
            losses: mean of every loss over the epoch.
        """
        return

    def work_finished(self, work: "Work", result: Any) -> None:  # noqa: ANN401 - a sweep's value is its reducer's
        """Called when a phase or sweep is over or its saved result was found.

        Args:
            work: the phase or sweep.
            result: that the method gets.
        """
        return


@final
class Silence(Progress):
    """Shows nothing."""
