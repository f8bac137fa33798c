"""Pareto front of a grid's rows: few backbones (x), high accuracy (y). Imports no torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import final

from grace.studies.results import Results

BySeed = Mapping[int, tuple[float, float]]
"""(x, y) of one pair of settings for each seed."""


@final
@dataclass(frozen=True)
class Point:
    """A point with the labels of all pairs of settings that lie exactly there."""

    x: float
    y: float
    labels: tuple[str, ...]


def merged(points: Sequence[Point]) -> list[Point]:
    """Join points with equal coordinates; the result is sorted by x, then by y."""
    labels: dict[tuple[float, float], tuple[str, ...]] = {}
    for point in points:
        labels[point.x, point.y] = labels.get((point.x, point.y), ()) + point.labels
    return [Point(*place, labels[place]) for place in sorted(labels)]


def front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other point dominates, by rising x; equal ones are joined."""
    return [
        point for point in merged(points) if not any(dominates(other, point) for other in points)
    ]


def dominates(a: Point, b: Point) -> bool:
    """Return True if a is at least as good as b in both coordinates and better in one."""
    return a.x <= b.x and a.y >= b.y and (a.x < b.x or a.y > b.y)


def shared_seeds(measured: Mapping[str, BySeed]) -> list[int]:
    """Return the seeds that all pairs of settings have, ascending."""
    return sorted(set.intersection(*(set(runs) for runs in measured.values()))) if measured else []


def mean_points(measured: Mapping[str, BySeed]) -> list[Point]:
    """Return a point for each pair of settings: unrounded means over the seeds that all have."""
    seeds = shared_seeds(measured)
    return [
        Point(fmean(runs[s][0] for s in seeds), fmean(runs[s][1] for s in seeds), (label,))
        for label, runs in measured.items()
        if seeds
    ]


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
    """Return, by label, where each pair of settings stands; nothing if no seed is shared."""
    seeds = shared_seeds(measured)
    shared = {label: {seed: runs[seed] for seed in seeds} for label, runs in measured.items()}

    def on(points: Sequence[Point]) -> set[str]:
        return {label for point in front(points) for label in point.labels}

    on_front = on(mean_points(shared))
    of_seeds = [on([Point(*runs[seed], (n,)) for n, runs in shared.items()]) for seed in seeds]
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


def dominates_beyond_noise(a: BySeed, b: BySeed) -> bool:
    """Return True if a's mean dominates b's, and a's y is higher by more than 2 standard errors.

    Differences are paired by seed, over the seeds that both have. One seed shows no noise: False.
    """
    points, seeds = mean_points({"a": a, "b": b}), shared_seeds({"a": a, "b": b})
    if len(seeds) < 2 or not dominates(*points):
        return False
    differences = [a[seed][1] - b[seed][1] for seed in seeds]
    return fmean(differences) > 2 * stdev(differences) / math.sqrt(len(seeds))


def by_seed(results: Results, protocol: str, key: str) -> dict[str, BySeed]:
    """Return (backbones, metric) of the rows of grids that have runs, by row and seed."""
    found: dict[str, BySeed] = {}
    for row in results.grid_rows(protocol):
        known = results.numbers.loc[(protocol, row), ["backbones", key]].dropna()
        if len(known):
            pairs = known.itertuples(name=None)
            found[row] = {int(seed): (float(x), float(y)) for seed, x, y in pairs}
    return found
