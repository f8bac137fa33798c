"""The figures of a study as panels, from its numbers."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Literal

from grace.runs import RunRecord, TaskRecord
from grace.studies.drawing import Panel, Series
from grace.studies.figures import STYLES, Style
from grace.studies.grid_claims import by_seed
from grace.studies.groups import Spread
from grace.studies.measure_claims import measures_of
from grace.studies.origins import ORIGINS, OriginName, by_origin
from grace.studies.pareto import Point, front, mean_points, merged, spreads
from grace.studies.replay import expansions
from grace.studies.study_results import METRICS, Results

Panels = Sequence[Panel]
_MOST_LINES = 12
"""Further rows would make a figure of lines unreadable: they are left out, as its title says."""


def study_figures(results: Results) -> Mapping[str, Panels]:
    """Return the panels of every figure that the study names and has numbers for."""
    draw: Mapping[str, Callable[[Results], Panels]] = {
        "accuracy": _accuracy,
        "backbones": _backbones,
        "protocols": _protocols,
        "front": _front,
        "measures": _measures,
        "bars": _bars,
    }
    found = {name: draw[name](results) for name in results.made.study.figures}
    return {name: panels for name, panels in found.items() if any(p.series for p in panels)}


def _accuracy(results: Results) -> Panels:
    def all_seen(task: TaskRecord) -> float | None:
        return task.accuracy.all if task.accuracy else None

    return _over_tasks(results, all_seen, "line", "accuracy on all classes seen (%)")


def _backbones(results: Results) -> Panels:
    return _over_tasks(results, lambda task: task.backbones, "steps", "backbones")


def _over_tasks(
    results: Results,
    value: Callable[[TaskRecord], float | None],
    kind: Literal["line", "steps"],
    y_title: str,
) -> Panels:
    """Draw a line over tasks for each ranked row, means over seeds; a panel for each protocol."""
    rows = [row for row in results.rows if results.settings(row).ranked]
    panels = []
    for protocol in results.protocols:
        series = []
        for row in rows:
            records = _records(results, row, protocol)
            if records:
                columns = zip(*([value(task) for task in r.tasks] for r in records), strict=False)
                means = [_mean(column) for column in columns]
                tasks = list(range(1, len(means) + 1))
                series.append(Series(x=tasks, y=means, label=results.label(row), kind=kind))
        panels.append(
            Panel(
                series=series[:_MOST_LINES],
                title=": ".join(filter(None, [protocol, _drawn(series)])),
                x_title="task",
                y_title=y_title,
            )
        )
    return panels


def _drawn(series: Sequence[Series]) -> str:
    """Return how many of the rows are drawn; nothing if all are."""
    return f"{_MOST_LINES} of {len(series)} rows" if len(series) > _MOST_LINES else ""


def _protocols(results: Results) -> Panels:
    """Draw metrics by protocol, as in the paper's first figure."""
    # The ranked ones come first, so that a row looks the same in all figures.
    rows = sorted(results.rows, key=lambda row: not results.settings(row).ranked)
    panels = []
    for key in ("average", "parameters"):
        mean = results.mean(key)
        series = [
            Series(
                x=list(range(len(results.protocols))),
                y=[mean(row, protocol) for protocol in results.protocols],
                label=results.label(row),
            )
            for row in rows
        ]
        kept = [one for one in series if any(value is not None for value in one.y)]
        panels.append(
            Panel(
                series=kept[:_MOST_LINES],
                title=_drawn(kept),
                x_names=results.protocols,
                y_title=METRICS[key].heading,
            )
        )
    return panels


def _bars(results: Results) -> Panels:
    """Draw the mean and deviation of every row, a panel for Last and Avg of each protocol."""
    panels = []
    for protocol in results.protocols:
        rows = results.rows_in(protocol)
        for key in ("last", "average"):
            found = [results.over_seeds(row, protocol, key) for row in rows]
            series = Series(
                x=list(range(len(rows))),
                y=[one.mean if one else None for one in found],
                y_error=[one.deviation if one else None for one in found],
                kind="points",
            )
            column = METRICS[key]
            panels.append(
                Panel(
                    series=[series] if any(found) else [],
                    title=protocol,
                    x_names=[results.label(row) for row in rows],
                    y_title=column.heading,
                )
            )
    return panels


def _front(results: Results) -> Panels:
    """Draw backbones against Avg and Last of a grid's rows, and their Pareto front."""
    panels = []
    for protocol in results.protocols:
        for key in ("average", "last"):
            measured = by_seed(results, protocol, key)
            points = merged(mean_points(measured))
            around = spreads(measured)
            series = [
                _cloud(kept, around, name)
                for name, kept in by_origin(results, points, protocol).items()
                if kept
            ]
            if points:
                best = front(points)
                line = Series(
                    x=[p.x for p in best],
                    y=[p.y for p in best],
                    label="front",
                    kind="front",
                    style=_place_style(len(ORIGINS)),
                )
                series.append(line)
            title = f"{protocol}: {METRICS[key].title}"
            panels.append(
                Panel(
                    series=series,
                    title=title,
                    x_title="backbones",
                    y_title=METRICS[key].heading,
                )
            )
    return panels


def _cloud(
    points: Sequence[Point],
    around: Mapping[str, tuple[Spread, Spread]],
    name: OriginName,
) -> Series:
    """Draw points of one origin, which looks the same in all panels.

    Args:
        points: the points.
        around: mean and deviation of x and of y by label.
        name: the origin.
    """

    def deviation(point: Point, place: int) -> float | None:
        return around[point.labels[0]][place].deviation

    return Series(
        x=[point.x for point in points],
        y=[point.y for point in points],
        x_error=[deviation(point, 0) for point in points],
        y_error=[deviation(point, 1) for point in points],
        texts=[_named(point) for point in points] if len(points) <= 20 else (),
        label=name,
        kind="points",
        style=_place_style(list(ORIGINS).index(name)),
        fill=ORIGINS[name],
    )


def _place_style(place: int) -> Style:
    return Style("", *STYLES[place])


def _named(point: Point) -> str:
    first, *more = point.labels
    return f"{first} +{len(more)}" if more else first


def _measures(results: Results) -> Panels:
    """Draw each saturation measure over tasks, with the expansions as dividers."""
    panels = []
    for protocol in results.protocols:
        records = [r for row in results.rows for r in _records(results, row, protocol)]
        known = [measures_of(record) for record in records]
        for name in known[0] if known else ():
            columns = list(zip(*(found[name] for found in known if name in found), strict=False))
            series = Series(
                x=list(range(1, len(columns) + 1)),
                y=[fmean(column) for column in columns],
                y_error=[stdev(c) if len(c) > 1 else None for c in columns],
            )
            at = [task - 0.5 for task in expansions(records[0])]
            words = name.replace("_", " ")
            panels.append(Panel(series=[series], title=words, x_title="task", dividers=at))
    return panels


def _records(results: Results, row: str, protocol: str) -> list[RunRecord]:
    found = (results.found(row, protocol, seed) for seed in results.seeds)
    return [one.record for one in found if one]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None
