"""Estimate the time that a run still needs from the tasks that are finished."""

import time
from collections.abc import Callable
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
        """Estimate the seconds until the last task ends; ``None`` before a task has finished."""
        if not self._finished:
            return None
        later = self._finished[1:] or self._finished
        mean = sum(later) / len(later)
        left = self._total - len(self._finished)
        spent = min(mean, self._now() - self._started) if self._started is not None else 0.0
        return max(0.0, left * mean - spent)


def in_clock(seconds: float | None) -> str:
    """Return "0:04:05", or "-:--:--" for ``None``."""
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
