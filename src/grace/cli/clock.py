"""Estimate the time that a run or an update still needs from what is finished."""

import time
from collections.abc import Callable, Mapping
from typing import final


@final
class RunClock:
    """Measures the seconds of each task and estimates the rest.

    The first task usually costs more or less than the later ones, so it counts only while no later
    task has finished.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._started: float | None = None
        self._finished: list[float] = []
        self._total = 0

    def task_started(self, total: int) -> None:
        """Start timing one of ``total`` tasks."""
        self._started = self._now()
        self._total = total

    def task_finished(self) -> None:
        """Stop timing the task."""
        assert self._started is not None
        self._finished.append(self._now() - self._started)
        self._started = None

    def seconds_left(self) -> float | None:
        """Estimate the seconds until the last task ends.

        ``None`` before a task has finished, and when the last one takes longer than those before
        it: nothing then tells how long.
        """
        if not self._finished:
            return None
        later = self._finished[1:] or self._finished
        mean = sum(later) / len(later)
        spent = min(mean, self._now() - self._started) if self._started is not None else 0.0
        left = (self._total - len(self._finished)) * mean - spent
        return left if left > 0 else None


@final
class UpdateClock:
    """Estimates the rest of an update from its planned passes and the seconds taken so far.

    Only epochs that this process trained count for its speed: after an interruption, the others are
    read from disk. A planned phase that is left out takes no time once a later one starts.

    Args:
        passes: the planned cost of each phase by its name, in the order of the phases.
        now: the time in seconds.
    """

    def __init__(
        self, passes: Mapping[str, float], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._passes = dict(passes)
        self._now = now
        self._started = now()
        self._phase: str | None = None
        self._epoch = 0
        self._done = 0.0
        self._left = sum(self._passes.values())

    @property
    def share_done(self) -> float:
        """The share of the planned passes that is over, from 0 to 1."""
        total = sum(self._passes.values())
        return 1 - self._left / total if total else 1.0

    def plans(self, name: str) -> bool:
        """Return ``True`` if a phase or sweep of this name is in the plan."""
        return name in self._passes

    def phase_started(self, name: str) -> None:
        """Go on to a phase; one that was not planned stands after all planned ones."""
        names = list(self._passes)
        first = names.index(name) if name in names else len(names)
        self._phase = name if name in names else None
        self._epoch = 0
        self._left = sum(self._passes[later] for later in names[first:])

    def epoch_finished(self, epoch: int, epochs: int) -> None:
        """Count an epoch of the phase, once if several phases take turns.

        Args:
            epoch: that is over, from 1.
            epochs: of the phase in all.
        """
        if self._phase is None or epoch <= self._epoch:
            return
        each = self._passes[self._phase] / epochs
        before = self._epoch or epoch - 1  # The first may be any: a phase goes on from a snapshot.
        self._done += each * (epoch - before)
        self._left -= each * (epoch - self._epoch)
        self._epoch = epoch

    def phase_finished(self) -> None:
        """End the phase, also one that was read from disk."""
        names = list(self._passes)
        if self._phase is not None:
            self._left = sum(self._passes[name] for name in names[names.index(self._phase) + 1 :])
        self._phase = None

    def seconds_left(self) -> float | None:
        """Estimate the seconds of training left; ``None`` before an epoch and after the last."""
        if not self._done or self._left <= 1e-9 * sum(self._passes.values()):
            return None
        return self._left * (self._now() - self._started) / self._done


def in_clock(seconds: float | None) -> str:
    """Return "0:04:05", or "-:--:--" for ``None``."""
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
