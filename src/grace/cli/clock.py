"""How long a run still takes, guessed from the tasks it has finished."""

import time
from collections.abc import Callable
from typing import final


@final
class RunClock:
    """Remembers how long tasks took.

    Tasks after the first resemble each other more than the first resembles them, so the first only
    counts while there is no other.
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
        """Stop timing it."""
        assert self._started is not None
        self._finished.append(self._now() - self._started)
        self._started = None

    def seconds_left(self) -> float | None:
        """Guess the seconds until the last task is over; none before a task has finished."""
        if not self._finished:
            return None
        later = self._finished[1:] or self._finished
        mean = sum(later) / len(later)
        left = self._total - len(self._finished)
        spent = min(mean, self._now() - self._started) if self._started is not None else 0.0
        return max(0.0, left * mean - spent)


def in_clock(seconds: float | None) -> str:
    """Return "0:04:05", or "–:––:––" while unknown."""
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
