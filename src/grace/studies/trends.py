"""Rise, reset and agreement of a saturation measure over tasks. Imports no torch.

A *range* is the tasks that one mergeable backbone learns: it begins with the first task or an
expansion and ends before the next expansion. A good measure of saturation rises within a range,
falls at the expansion, and runs alike in all ranges.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import StatisticsError, correlation, fmean, pstdev
from typing import final


@final
@dataclass(frozen=True)
class Trend:
    """How a measure changes over the ranges of a stream.

    Args:
        rise: mean over ranges of Spearman's correlation between position and value, in [−1, 1];
            ``None`` if no range has two tasks or more.
        falls: by how much the value falls at each expansion; negative where it rises.
        agreement: mean over the positions that all ranges have of deviation/|mean| across ranges;
            0 if all ranges are equal, so less is better. ``None`` for one range, or a mean of 0.
    """

    rise: float | None
    falls: tuple[float, ...]
    agreement: float | None

    @property
    def resets(self) -> bool | None:
        """True if the value falls at every expansion; ``None`` without an expansion."""
        return all(fall > 0 for fall in self.falls) if self.falls else None


def trend(values: Sequence[float], expansions: Sequence[int]) -> Trend:
    """Summarise a measure over a stream.

    Args:
        values: of task 1, 2, …
        expansions: numbers of the tasks that expanded, from 2.
    """
    ranges = split_at(values, expansions)
    return Trend(
        rise(ranges),
        tuple(before[-1] - after[0] for before, after in pairwise(ranges)),
        agreement(ranges),
    )


def split_at(values: Sequence[float], expansions: Sequence[int]) -> list[Sequence[float]]:
    """Split the values of all tasks into ranges; each expansion begins a range.

    Args:
        values: of task 1, 2, …
        expansions: numbers of tasks, from 2; numbers above the last task are left out.
    """
    starts = [0, *(task - 1 for task in sorted(set(expansions)) if task <= len(values))]
    return [values[start:end] for start, end in pairwise([*starts, len(values)])]


def rise(ranges: Sequence[Sequence[float]]) -> float | None:
    """Return the mean of Spearman's correlation of position and value over the ranges.

    A range of one task says nothing and is left out; ``None`` if all are.
    """
    found = [spearman(range(len(values)), values) for values in ranges if len(values) > 1]
    return fmean(found) if found else None


def agreement(ranges: Sequence[Sequence[float]]) -> float | None:
    """Return the mean over shared positions of population deviation/|mean| across ranges.

    Positions are shared up to the length of the shortest range.
    """
    together = list(zip(*ranges, strict=False))
    if len(ranges) < 2 or any(fmean(values) == 0 for values in together):
        return None
    return fmean(pstdev(values) / abs(fmean(values)) for values in together)


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation, in [−1, 1]; equal values share their mean rank.

    It is 0 if one side is constant: such a measure does not rise.

    Args:
        one: at least two values.
        other: as many.
    """
    try:
        return correlation(_ranks(one), _ranks(other))
    except StatisticsError:
        return 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Return ranks from 1; equal values share the mean of their places."""
    ordered = sorted(values)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in values]
