"""Saturation measures of a run over tasks: rise, reset and agreement. Imports no torch.

A *range* is the tasks that one mergeable backbone learns: it begins with the first task or an
expansion and ends before the next expansion. A good measure of saturation rises within a range,
falls at the expansion, and runs alike in all ranges.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, pstdev
from typing import final

from grace.runs.model import RunRecord
from grace.studies.plan import expansions


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


def trend(values: Sequence[float], at: Sequence[int]) -> Trend:
    """Summarise a measure over a stream.

    Args:
        values: of task 1, 2, …
        at: numbers of the tasks that expanded, from 2; those above the last task are left out.
    """
    starts = [0, *(task - 1 for task in sorted(set(at)) if task <= len(values))]
    ranges = [values[start:end] for start, end in pairwise([*starts, len(values)])]
    rises = [spearman(range(len(own)), own) for own in ranges if len(own) > 1]
    together = list(zip(*ranges, strict=False))
    is_compared = len(ranges) > 1 and all(fmean(own) != 0 for own in together)
    return Trend(
        fmean(rises) if rises else None,
        tuple(before[-1] - after[0] for before, after in pairwise(ranges)),
        fmean(pstdev(own) / abs(fmean(own)) for own in together) if is_compared else None,
    )


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Return Spearman's rank correlation; 0 if one side is constant: it does not rise."""
    if len(set(one)) < 2 or len(set(other)) < 2:
        return 0.0
    from scipy.stats import spearmanr

    return float(spearmanr(one, other).statistic)


def measures_of(record: RunRecord) -> Mapping[str, list[float]]:
    """Return the measures that every task of a run has, by name, in the order of tasks.

    The standard error of a measure, which ends in "_error", is none.
    """
    taken = [task.measures for task in record.tasks]
    first = [name for name in taken[0] if not name.endswith("_error")] if taken else []
    names = [name for name in first if all(name in found for found in taken)]
    return {name: [found[name] for found in taken] for name in names}


def trends_of(record: RunRecord) -> dict[str, Trend]:
    """Return rise, reset and agreement of every measure of a run."""
    at = expansions(record)
    return {name: trend(values, at) for name, values in measures_of(record).items()}
