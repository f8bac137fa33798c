"""Pareto front of runs: few backbones (x, less is better), high accuracy (y). Imports no torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import final

from grace.studies.claims import judge_claim
from grace.studies.groups import Spread, spread

BySeed = Mapping[int, tuple[float, float]]
"""(x, y) of one pair of settings for each seed."""


@final
@dataclass(frozen=True)
class Point:
    """A point with the labels of all pairs of settings that lie exactly there."""

    x: float
    y: float
    labels: tuple[str, ...]


def front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other point dominates, by rising x.

    Points with equal coordinates become one point with all their labels, in the order given.
    """
    return [
        point for point in merged(points) if not any(dominates(other, point) for other in points)
    ]


def merged(points: Sequence[Point]) -> list[Point]:
    """Join points with equal coordinates; the result is sorted by x, then by y."""
    labels: dict[tuple[float, float], tuple[str, ...]] = {}
    for point in points:
        place = (point.x, point.y)
        assert all(map(math.isfinite, place)), point
        labels[place] = labels.get(place, ()) + point.labels
    return [Point(*place, labels[place]) for place in sorted(labels)]


def dominates(a: Point, b: Point) -> bool:
    """Return True if a is at least as good as b in both coordinates and better in one."""
    return a.x <= b.x and a.y >= b.y and (a.x < b.x or a.y > b.y)


def shared_seeds(measured: Mapping[str, BySeed]) -> list[int]:
    """Return the seeds that all pairs of settings have, ascending."""
    return sorted(set.intersection(*(set(runs) for runs in measured.values()))) if measured else []


def mean_points(measured: Mapping[str, BySeed]) -> list[Point]:
    """Return one point for each pair of settings: unrounded means over the seeds that all have.

    Args:
        measured: (x, y) by label and seed.

    Returns:
        A point for each label, in the order given; no point if no seed is shared.
    """
    seeds = shared_seeds(measured)
    if not seeds:
        return []
    return [
        Point(
            fmean(runs[seed][0] for seed in seeds),
            fmean(runs[seed][1] for seed in seeds),
            (label,),
        )
        for label, runs in measured.items()
    ]


def spreads(measured: Mapping[str, BySeed]) -> dict[str, tuple[Spread, Spread]]:
    """Return mean and sample deviation of x and of y by label, over the seeds that all have."""
    seeds = shared_seeds(measured)
    found = {}
    for label, runs in measured.items():
        x, y = (spread(runs[seed][place] for seed in seeds) for place in (0, 1))
        if x is not None and y is not None:
            found[label] = (x, y)
    return found


@final
@dataclass(frozen=True)
class FrontPlace:
    """Where a pair of settings stands, over the seeds that all pairs have.

    Args:
        is_on_front: True if its means are on the front of the means.
        times: number of seeds in whose own front it is.
        seeds: number of the seeds.
        dominated_by: number of pairs that dominate it beyond noise; ``None``: one seed shows none.
    """

    is_on_front: bool
    times: int
    seeds: int
    dominated_by: int | None


def front_places(measured: Mapping[str, BySeed]) -> dict[str, FrontPlace]:
    """Return, by label, where each pair of settings stands; nothing if no seed is shared.

    Args:
        measured: (x, y) by label and seed.
    """
    seeds = shared_seeds(measured)
    shared = {label: {seed: runs[seed] for seed in seeds} for label, runs in measured.items()}
    on_front = _labels(front(mean_points(shared)))
    of_seeds = [
        _labels(front([Point(*runs[seed], (label,)) for label, runs in shared.items()]))
        for seed in seeds
    ]
    return {
        label: FrontPlace(
            label in on_front,
            sum(label in labels for labels in of_seeds),
            len(seeds),
            sum(dominates_beyond_noise(other, runs) for other in shared.values())
            if len(seeds) > 1
            else None,
        )
        for label, runs in shared.items()
        if seeds
    }


def _labels(points: Sequence[Point]) -> set[str]:
    return {label for point in points for label in point.labels}


def dominates_beyond_noise(a: BySeed, b: BySeed) -> bool:
    """Return True if a's mean dominates b's, and a's y is higher by more than 2 standard errors.

    Differences are paired by seed, over the seeds that both have. One seed shows no noise: False.
    """
    points = mean_points({"a": a, "b": b})
    if not points or not dominates(*points):
        return False
    judged = judge_claim([a[seed][1] - b[seed][1] for seed in shared_seeds({"a": a, "b": b})])
    return judged.count > 1 and judged.verdict == "holds"
