"""Figures of the report as plain plotly specifications, from records alone.

A specification is ``{"data": [...], "layout": {...}}``. Traces carry their group's key in ``meta``,
by which the page's legend hides and shows them.
"""

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from grace.base.words import printable
from grace.runs import RunRecord, TaskRecord
from grace.settings.registry import METHODS
from grace.studies.groups import Group, Spread, spread

Figure = dict[str, Any]


@final
@dataclass(frozen=True)
class Style:
    """Line style of a group in all figures: colour and dash by method, other dashes by variant."""

    key: str
    colour: str
    dash: str


def styles(groups: Sequence[Group]) -> list[Style]:
    """Return a style for each group; a registered method has the same style in all figures.

    Further variants of a method have its colour and other dashes. Methods that are not registered
    get the styles after those of the registered ones, in order of appearance.
    """
    dashes = ["solid", "dash", "dot", "dashdot", "longdash"]
    places = {method: place for place, method in enumerate(METHODS)}
    for group in groups:
        places.setdefault(group.method, len(places))
    used: dict[tuple[str, str], int] = {}
    found = []
    for number, group in enumerate(groups):
        variant = used.get((group.experiment, group.method), 0)
        used[group.experiment, group.method] = variant + 1
        colour, dash = STYLES[places[group.method] % len(STYLES)]
        dash = dashes[(dashes.index(dash) + variant) % len(dashes)]
        found.append(Style(f"g{number}", colour, dash))
    return found


STYLES = (
    ("#0072B2", "solid"),  # blue
    ("#D55E00", "solid"),  # vermilion
    ("#CC79A7", "dash"),  # pink
    ("#E69F00", "dash"),  # orange
    ("#A65628", "dot"),  # brown
    ("#56B4E9", "dot"),  # sky
    ("#009E73", "solid"),  # green
    ("#332288", "dot"),  # indigo
    ("#4D4D4D", "dash"),  # grey
    ("#000000", "solid"),  # black
    ("#006078", "longdash"),  # petrol
    ("#600048", "dashdot"),  # plum
    ("#0060C0", "longdash"),  # cobalt
    ("#786048", "dashdot"),  # umber
    ("#783000", "dash"),  # rust
    ("#607878", "dot"),  # slate
    ("#601818", "longdash"),  # maroon
    ("#00A8FF", "dashdot"),  # azure
    ("#78A860", "dash"),  # moss
    ("#6078FF", "dot"),  # cornflower
    ("#483078", "dash"),  # violet
    ("#3018A8", "solid"),  # ultramarine
    ("#4848D8", "dashdot"),  # iris
    ("#1818FF", "dot"),  # pure blue
    ("#48D860", "longdash"),  # light green
    ("#00D890", "dashdot"),  # mint
    ("#78C0D8", "dashdot"),  # pale blue
)
"""Colour and dash of each method, by its place in the registry.

The first ten are seven of Okabe and Ito's eight colours (their yellow is too pale for a white page)
and three more. All were chosen so that normal, red-blind and green-blind eyes tell any two apart,
those of one dash clearly: a test measures it.
"""


def accuracy_figure(groups: Sequence[Group], looks: Sequence[Style]) -> Figure:
    """Draw A_t over tasks: mean line, and a band of one standard deviation for several seeds."""
    traces = _curves(groups, looks, lambda task: task.accuracy.all if task.accuracy else None)
    return _figure(traces, groups, "accuracy on all classes seen (%)", {"range": [0, 102]})


def task_aware_figure(groups: Sequence[Group], looks: Sequence[Style]) -> Figure | None:
    """Draw the task-aware accuracy as :func:`accuracy_figure` does; ``None`` if it is unknown."""

    def task_aware(task: TaskRecord) -> float | None:
        found = task.accuracy.task_aware if task.accuracy else None
        return found.all if found else None

    traces = _curves(groups, looks, task_aware)
    if not any(trace["y"] for trace in traces):
        return None
    return _figure(traces, groups, "task-aware accuracy (%)", {"range": [0, 102]})


def parameters_figure(groups: Sequence[Group], looks: Sequence[Style]) -> Figure:
    """Draw the parameters kept after each task, heads included."""
    traces = _curves(groups, looks, lambda task: task.parameters.total / 1e6)
    return _figure(traces, groups, "parameters (millions)", {"rangemode": "tozero"})


def expansion_figure(groups: Sequence[Group], looks: Sequence[Style]) -> Figure:
    """Draw the number of backbones over tasks, with the verdict at each task.

    Whole numbers coincide, so the lines are set apart by a little; hovering shows the number. Runs
    that decide nothing are one line per group.
    """
    drawn = [
        (group, look, record)
        for group, look in zip(groups, looks, strict=True)
        for record in (group.records if _decides(group) else group.records[:1])
    ]
    apart = min(0.08, 0.5 / len(drawn))
    traces = []
    for number, (group, look, record) in enumerate(drawn):
        offset = apart * ((len(drawn) - 1) / 2 - number)
        trace = _line(record.tasks, look, _run_name(group, record), lambda task: task.backbones)
        shift = {"y": [task.backbones + offset for task in record.tasks]}
        line = {"line": _stroke(look, 2) | {"shape": "hv"}, "zorder": len(drawn) - number}
        traces.append(trace | shift | line | {"marker": _verdicts(record.tasks, look)})
    axis = {"rangemode": "tozero", "dtick": _step(_most(groups, lambda t: t.backbones))}
    return _figure(traces, groups, "backbones", axis)


def saturation_figure(groups: Sequence[Group], looks: Sequence[Style]) -> Figure | None:
    """Draw saturation (line) against its threshold (dots) for methods that assess.

    One run shows its verdicts; several show their mean and one standard deviation.
    """
    traces: list[Figure] = []
    for group, look in zip(groups, looks, strict=True):
        if len(group.records) > 1:
            traces += _curves([group], [look], lambda task: task.saturation)
            bounds = Style(look.key, look.colour, "dot")
            means = _curves([group], [bounds], lambda task: task.threshold, banded=False)
            name = plot_text(f"{group.label}: threshold")
            traces += [mean | {"mode": "lines", "name": name} for mean in means]
        else:
            traces += _assessment(group.records[0], look, plot_text(group.label))
    if not any(trace["y"] for trace in traces):
        return None
    return _figure(traces, groups, "saturation (0 to 1)", {"range": [0, 1.02]})


def run_saturation_figure(group: Group, record: RunRecord, look: Style) -> Figure | None:
    """Draw one run's saturation, threshold and verdicts over tasks.

    Args:
        group: group of the run, which decides the axis.
        record: record of the run.
        look: line style of the group.

    Returns:
        The figure; ``None`` if the run has no saturation.
    """
    traces = _assessment(record, look, "saturation")
    if not any(trace["y"] for trace in traces):
        return None
    return _figure(traces, [group], "saturation (0 to 1)", {"range": [0, 1.02]})


def _assessment(record: RunRecord, look: Style, name: str) -> list[Figure]:
    assessed = [task for task in record.tasks if task.saturation is not None]
    bounded = [task for task in record.tasks if task.threshold is not None]
    saturation = _line(assessed, look, name, lambda task: task.saturation)
    threshold = _line(bounded, look, f"{name}: threshold", lambda task: task.threshold)
    dots = {"color": look.colour, "width": 2, "dash": "dot"}
    return [
        threshold | {"mode": "lines", "line": dots, "hovertemplate": "%{y:.3f}"},
        saturation | {"line": _stroke(look, 2.5), "marker": _verdicts(assessed, look)},
    ]


def _decides(group: Group) -> bool:
    return any(task.verdict for record in group.records for task in record.tasks)


def matrix_figure(record: RunRecord) -> Figure:
    """Draw R[t, i]: accuracy after each task (rows) on the classes of each task (columns)."""
    return _matrix(record.matrix)


def task_aware_matrix_figure(record: RunRecord) -> Figure | None:
    """Draw the task-aware R[t, i] as :func:`matrix_figure` does; ``None`` if it is unknown."""
    matrix = record.task_aware_matrix
    known = any(value is not None for row in matrix for value in row)
    return _matrix(matrix) if known else None


def _matrix(matrix: Sequence[Sequence[float | None]]) -> Figure:
    size = len(matrix)
    tasks = list(range(1, size + 1))
    trace = _heat(matrix, tasks, tasks) | {
        "hovertemplate": "after task %{y}, classes of task %{x}: %{z:.2f} %<extra></extra>"
    }
    if size <= 12:
        trace |= {"texttemplate": "%{z:.0f}", "textfont": {"size": 11}}
    ticks = {"tickmode": "linear", "dtick": _step(size), "tick0": 1}
    return _square(trace, "classes of task", "after task", ticks, 380)


def confusion_figure(record: RunRecord) -> Figure | None:
    """Draw the confusion matrix: share (%) of a true class's test images per predicted class."""
    task = next((task for task in reversed(record.tasks) if task.confusion), None)
    if task is None or task.confusion is None:
        return None
    names = [plot_text(name) for name in record.info.class_names[: len(task.confusion)]]
    names += [str(index) for index in range(len(names), len(task.confusion))]
    shares = [[100 * n / max(1, sum(row)) for n in row] for row in task.confusion]
    positions = list(range(len(shares)))
    trace = _heat(shares, positions, positions) | {
        "customdata": [
            [[names[true], names[called], count] for called, count in enumerate(row)]
            for true, row in enumerate(task.confusion)
        ],
        "hovertemplate": "true %{customdata[0]}, called %{customdata[1]}: "
        "%{customdata[2]} images (%{z:.1f} %)<extra></extra>",
    }
    if len(shares) <= 12:
        trace |= {"texttemplate": "%{z:.0f}", "textfont": {"size": 11}}
    step = max(1, math.ceil(len(names) / 25))
    ticks = {
        "tickmode": "array",
        "tickvals": positions[::step],
        "ticktext": [_shortened(name) for name in names[::step]],
    }
    height = 380 if len(names) <= 12 else 520
    return _square(trace, "called", "true class", ticks, height)


def plot_text(text: str) -> str:
    """Escape a name for plotly, which interprets some HTML tags in every text."""
    return html.escape(printable(text), quote=False)


def _shortened(name: str) -> str:
    plain = html.unescape(name)
    return name if len(plain) <= 14 else plot_text(f"{plain[:13]}…")


def _curves(
    groups: Sequence[Group],
    looks: Sequence[Style],
    value: Callable[[TaskRecord], float | None],
    *,
    banded: bool = True,
) -> list[Figure]:
    """Draw the mean over a group's runs, over the tasks that all of its runs have."""
    traces: list[Figure] = []
    for number, (group, look) in enumerate(zip(groups, looks, strict=True)):
        shared = min(len(record.tasks) for record in group.records)
        points = [
            (index + 1, mean)
            for index in range(shared)
            if (mean := spread(value(record.tasks[index]) for record in group.records))
        ]
        if banded and len(group.records) > 1 and points:
            traces.append(_band(points, look))
        deviations = [point.deviation or 0.0 for _, point in points]
        several = "±%{customdata:.2f} " if len(group.records) > 1 else ""
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "meta": look.key,
                "name": plot_text(group.label),
                "zorder": len(groups) - number,
                "x": [task for task, _ in points],
                "y": [point.mean for _, point in points],
                "customdata": deviations,
                "line": _stroke(look, 2.5),
                "marker": {"size": 7, "color": look.colour},
                "hovertemplate": f"%{{y:.2f}} {several}",
            }
        )
    return traces


def _band(points: Sequence[tuple[int, Spread]], look: Style) -> Figure:
    upper = [point.mean + (point.deviation or 0.0) for _, point in points]
    lower = [point.mean - (point.deviation or 0.0) for _, point in points]
    numbers = [number for number, _ in points]
    return {
        "type": "scatter",
        "mode": "lines",
        "meta": look.key,
        "x": [*numbers, *reversed(numbers)],
        "y": [*upper, *reversed(lower)],
        "fill": "toself",
        "fillcolor": f"{look.colour}29",
        "line": {"width": 0},
        "hoverinfo": "skip",
    }


def _line(
    tasks: Sequence[TaskRecord],
    look: Style,
    name: str,
    value: Callable[[TaskRecord], float | None],
) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "meta": look.key,
        "name": name,
        "x": [task.task for task in tasks],
        "y": [value(task) for task in tasks],
        "text": [f"{value(task):.4g} {task.verdict or ''}" for task in tasks],
        "hovertemplate": "%{text}",
    }


def _stroke(look: Style, width: float) -> Figure:
    return {"color": look.colour, "width": width, "dash": look.dash}


def _verdicts(tasks: Sequence[TaskRecord], look: Style) -> Figure:
    """Mark grow ▲, compress ▼, compress under a ceiling ▽ and the first task ■.

    Methods that decide nothing get small dots.
    """
    symbols = {
        "start": "square",
        "grow": "triangle-up",
        "compress": "triangle-down",
        "compress (budget)": "triangle-down-open",
    }
    verdicts = [task.verdict or "" for task in tasks]
    shown = [symbols.get(verdict, "circle") for verdict in verdicts]
    return {
        "symbol": shown,
        "size": [13 if symbol.startswith("triangle") else 7 for symbol in shown],
        "color": look.colour,
        # An open mark is drawn by its outline, which has the mark's colour.
        "line": {"color": "#ffffff", "width": [2 if s.endswith("open") else 1 for s in shown]},
    }


def _run_name(group: Group, record: RunRecord) -> str:
    several = len(group.records) > 1
    return plot_text(f"{group.label}, seed {record.seed}" if several else group.label)


def _heat(values: Sequence[Sequence[float | None]], x: list[int], y: list[int]) -> Figure:
    return {
        "type": "heatmap",
        "z": [list(row) for row in values],
        "x": x,
        "y": y,
        "zmin": 0,
        "zmax": 100,
        "xgap": 1 if len(x) <= 30 else 0,
        "ygap": 1 if len(y) <= 30 else 0,
        "hoverongaps": False,
        "colorscale": [[0, "#f3f7fb"], [0.35, "#9ecae1"], [0.7, "#3182bd"], [1, "#08306b"]],
        "colorbar": {"title": {"text": "%"}, "thickness": 12, "outlinewidth": 0},
    }


def _square(trace: Figure, across: str, down: str, ticks: Mapping[str, Any], height: int) -> Figure:
    plain = {"showgrid": False, "zeroline": False, "automargin": True, **ticks}
    return {
        "data": [trace],
        "layout": {
            "height": height,
            "xaxis": plain | {"title": {"text": across}, "constrain": "domain"},
            "yaxis": plain | {"title": {"text": down}, "autorange": "reversed"},
        },
    }


def _figure(
    traces: list[Figure],
    groups: Sequence[Group],
    title: str,
    axis: Mapping[str, Any],
) -> Figure:
    tasks = max((len(record.tasks) for group in groups for record in group.records), default=1)
    return {
        "data": [{"showlegend": False} | trace for trace in traces],
        "layout": {
            "height": 340,
            "hovermode": "x unified",
            "xaxis": {
                "title": {"text": "task"},
                "tickmode": "linear",
                "tick0": 1,
                "dtick": _step(tasks),
                "range": [0.7, max(tasks, 2) + 0.3],
                "unifiedhovertitle": {"text": "task %{x}"},
            },
            "yaxis": {"title": {"text": title}, **axis},
        },
    }


def _most(groups: Sequence[Group], value: Callable[[TaskRecord], int]) -> int:
    return max((value(t) for g in groups for r in g.records for t in r.tasks), default=1)


def _step(count: int) -> int:
    """Return a whole distance of ticks that gives about ten ticks at most."""
    return next(step for step in (1, 2, 5, 10, 20, 50, count) if count / step <= 10)
