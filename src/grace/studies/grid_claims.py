"""The points of a study's grid: backbones against accuracy, and claims about them."""

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise

from grace.base.words import counted
from grace.settings.claims import ClaimSettings
from grace.studies.pareto import Point, front_places, merged
from grace.studies.study_results import Results


def grid_differences(
    claim: ClaimSettings, protocol: str, results: Results
) -> tuple[list[float], str]:
    """Compare the points of a grid, seed by seed.

    Args:
        claim: of kind "never-rises", "fewer-points" or "on-front".
        protocol: name of the protocol.
        results: the study's numbers.

    Returns:
        Differences that are not negative where the claim holds; and what was compared, in words.
    """
    if claim.kind == "never-rises":
        words = f"least fall of backbones with {claim.setting}"
        return _falls(claim.setting, protocol, results), words
    if claim.kind == "fewer-points":
        return _repeats(protocol, results), "pairs − distinct points − 1"
    return _on_front(str(claim.left), protocol, results)


def _repeats(protocol: str, results: Results) -> list[float]:
    """Return for each seed how many pairs, less one, lie where another one lies."""
    measured = by_seed(results, protocol, "average")
    found = []
    for seed in results.seeds:
        points = [Point(*runs[seed], (row,)) for row, runs in measured.items() if seed in runs]
        if points:
            found.append(len(points) - len(merged(points)) - 1.0)
    return found


def _falls(setting: str, protocol: str, results: Results) -> list[float]:
    """Return for each seed the least fall of backbones between neighbours of a grid's setting."""
    differences = []
    for seed in results.seeds:
        falls = [
            before - after
            for line in _grid_lines(setting, protocol, results)
            for one, other in pairwise(line)
            if (before := results.value(one, protocol, seed, "backbones")) is not None
            and (after := results.value(other, protocol, seed, "backbones")) is not None
        ]
        if falls:
            differences.append(min(falls))
    return differences


def _grid_lines(setting: str, protocol: str, results: Results) -> Iterator[list[str]]:
    """Yield rows of grids that differ in one setting only, by its rising value."""
    for name, row in results.made.study.rows.items():
        if row.grid is None or setting not in row.grid:
            continue
        place = list(row.grid).index(setting)
        lines: dict[tuple[str, ...], list[str]] = {}
        for label in results.made.study.grid_rows(name):
            parts = label.split("/")
            if label in results.rows and results.has_cell(label, protocol):
                lines.setdefault((*parts[:place], *parts[place + 1 :]), []).append(label)
        for line in lines.values():
            yield sorted(line, key=partial(_value_at, place))


def _value_at(place: int, label: str) -> float:
    return float(label.split("/")[place])


def _on_front(label: str, protocol: str, results: Results) -> tuple[list[float], str]:
    place = front_places(by_seed(results, protocol, "average")).get(label)
    words = f"{label} on the front of the means"
    if place is None:
        return [], words
    words += f"; on that of {place.times} of {counted(place.seeds, 'seed')}"
    if place.dominated_by is not None:
        words += f"; dominated beyond noise by {counted(place.dominated_by, 'pair')}"
    return [0.0 if place.is_on_front else -1.0], words


def grid_rows(results: Results, protocol: str) -> list[str]:
    """Return the rows of grids that stand in a protocol."""
    return [
        row
        for row in results.rows
        if results.settings(row).grid is not None and results.has_cell(row, protocol)
    ]


def by_seed(
    results: Results, protocol: str, key: str
) -> Mapping[str, dict[int, tuple[float, float]]]:
    """Return (backbones, metric) of the rows of grids by row and seed; for Pareto fronts.

    Args:
        results: the study's numbers.
        protocol: name of the protocol.
        key: key of the metric.
    """
    found = {
        row: {
            seed: (x, y)
            for seed in results.seeds
            if (x := results.value(row, protocol, seed, "backbones")) is not None
            and (y := results.value(row, protocol, seed, key)) is not None
        }
        for row in grid_rows(results, protocol)
    }
    return {row: values for row, values in found.items() if values}
