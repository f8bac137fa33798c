"""Figures as SVG texts by matplotlib, one function for each; the same numbers give the same bytes.

Texts are drawn as they are: nothing in a name is read as a formula or as markup. matplotlib is
imported when a figure is drawn, not before.
"""

import io
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from grace.base.words import one_line
from grace.runs.model import RunRecord, TaskRecord
from grace.studies.frame import METRICS
from grace.studies.measures import measures_of
from grace.studies.pareto import dominators, grid_numbers, points, shared
from grace.studies.plan import expansions
from grace.studies.results import StudyResult

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"),
    *("#56B4E9", "#A65628", "#332288", "#4D4D4D", "#000000"),
)
"""Seven of Okabe and Ito's colours (their yellow is too pale) and three more."""
_DASHES: Sequence[Any] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
_MOST_LINES = 12
"""Further lines would make a figure unreadable: they are left out, as its title says."""
_MOST_PANELS = 8
_WIDTH, _HEIGHT = 3.6, 2.7
"""Inches of one panel."""
_RC: Any = {
    "svg.hashsalt": "figure",
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "axes.titlesize": 9,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
}
_DIVIDER: Any = {"color": "#555555", "linestyle": (0, (3, 2)), "lw": 0.9, "zorder": 1}
"""Style of a line where a run expanded."""


@final
@dataclass(frozen=True)
class Panel:
    """One panel of a figure: a title, the texts of its axes, and what draws on it."""

    title: str
    across: str
    up: str
    draw: "Callable[[Axes], object]"


def study_figures(result: StudyResult) -> Mapping[str, str]:
    """Return the SVG text of every figure that a study names and has numbers for."""
    makers: Mapping[str, Callable[[StudyResult], Iterable[Panel]]] = {
        "accuracy": _accuracy,
        "backbones": _backbones,
        "protocols": _protocols,
        "front": _fronts,
        "measures": _measures,
        "bars": _bars,
    }
    found = {name: drawn(list(makers[name](result))) for name in result.study.figures}
    return {name: text for name, text in found.items() if text}


def _accuracy(result: StudyResult) -> Iterable[Panel]:
    def all_seen(task: TaskRecord) -> float | None:
        return task.accuracy.all if task.accuracy else None

    return _over_tasks(result, all_seen, "accuracy on all classes seen (%)")


def _backbones(result: StudyResult) -> Iterable[Panel]:
    return _over_tasks(result, lambda task: task.backbones, "backbones")


def _over_tasks(
    result: StudyResult, value: Callable[[TaskRecord], float | None], up: str
) -> Iterable[Panel]:
    """Yield means over the runs of the ranked rows, with a band of one standard deviation.

    Args:
        result: the study.
        value: number of a task; a line ends where a run has none.
        up: title of the y axis.
    """
    for protocol in result.protocols[:_MOST_PANELS]:
        rows = {
            result.label(row): [one.record for one in runs]
            for row in result.ranked(protocol)
            if (runs := result.runs(row, protocol))
        }

        def draw(axes: "Axes", rows: Mapping[str, Sequence[RunRecord]] = rows) -> None:
            for number, (label, records) in enumerate(list(rows.items())[:_MOST_LINES]):
                columns = zip(*(map(value, record.tasks) for record in records), strict=False)
                means, deviations = _over(columns)
                tasks, style = range(1, len(means) + 1), _style(number)
                axes.plot(tasks, means, label=_label(label), marker="o", **style)
                if any(deviations):
                    band = (means - deviations, means + deviations)
                    axes.fill_between(tasks, *band, alpha=0.15, linewidth=0, color=style["color"])

        yield Panel(_with_limit(protocol, "lines", len(rows)), "task", up, draw)


def saturation(record: RunRecord) -> Panel:
    """Return a run's saturation (line) against its threshold (dots), with its expansions."""

    def draw(axes: "Axes") -> None:
        known = [task for task in record.tasks if task.saturation is not None]
        tasks = [task.task for task in known]
        axes.plot(tasks, _known(t.saturation for t in known), marker="o", label="saturation")
        axes.plot(tasks, _known(t.threshold for t in known), ":", label="threshold")
        for task in expansions(record):
            axes.axvline(task, **_DIVIDER)

    title = f"{record.method}, seed {record.seed}"
    return Panel(title, "task (dashed: grow)", "0 to 1", draw)


def matrices(record: RunRecord) -> Iterable[Panel]:
    """Yield the accuracy on each task after each task, and the last confusion in percent."""

    def draw(axes: "Axes", values: Sequence[Sequence[float | None]], first: int) -> None:
        end = first + len(values) - 0.5
        extent = (first - 0.5, end, end, first - 0.5)
        image = axes.imshow(
            list(map(_known, values)), vmin=0, vmax=100, cmap="Blues", extent=extent
        )
        axes.figure.colorbar(image, ax=axes, shrink=0.8)
        axes.grid(visible=False)

    yield Panel(
        "accuracy (%)", "classes of task", "after task", lambda axes: draw(axes, record.matrix, 1)
    )
    rows = next((task.confusion for task in reversed(record.tasks) if task.confusion), ())
    if rows:
        shares = [[100 * n / num for n in row] for row in rows for num in [max(1, sum(row))]]
        yield Panel("confusion (%)", "called", "true class", lambda axes: draw(axes, shares, 0))


def _protocols(result: StudyResult) -> Iterable[Panel]:
    """Yield metrics by protocol, as in the paper's first figure."""
    # The ranked ones come first, so that a row looks the same in all figures.
    rows = sorted(result.rows, key=lambda row: not result.settings(row).ranked)
    for key in ("average", "parameters"):

        def draw(axes: "Axes", key: str = key) -> None:
            means = result.means[key].unstack("protocol")[list(result.protocols)]
            for number, row in enumerate(rows[:_MOST_LINES]):
                label, style = _label(result.label(row)), _style(number)
                axes.plot(range(means.shape[1]), means.loc[row], label=label, marker="o", **style)
            _names(axes, result.protocols)

        yield Panel(_with_limit("", "rows", len(rows)), "", METRICS[key].heading, draw)


def _bars(result: StudyResult) -> Iterable[Panel]:
    """Yield the mean and deviation of every row, a panel for Last and Avg of each protocol."""
    for protocol in result.protocols:
        for key in ("last", "average"):

            def draw(axes: "Axes", protocol: str = protocol, key: str = key) -> None:
                rows = result.rows_in(protocol)
                y, error = (
                    of.loc[protocol].loc[rows, key] for of in (result.means, result.deviations)
                )
                axes.errorbar(range(len(rows)), y, error, fmt="o", capsize=2)
                _names(axes, [result.label(row) for row in rows])

            yield Panel(protocol, "", METRICS[key].heading, draw)


def _fronts(result: StudyResult) -> Iterable[Panel]:
    """Yield backbones against Avg and Last of a grid's rows; numbered points stand on the front.

    Filled: some run was trained for it; hollow: all its runs are replayed.
    """
    for protocol in result.protocols:
        for key in ("average", "last"):

            def draw(axes: "Axes", protocol: str = protocol, key: str = key) -> None:
                x, y = (of.mean(axis=1) for of in shared(*grid_numbers(result, protocol, key)))
                best = ~dominators(x, y).any(axis=1)
                for kind, fill in (("trained", "full"), ("replayed", "none")):
                    own = [
                        place
                        for place, rows in points(x, y).items()
                        for replayed, runs in [result.origin(rows, protocol)]
                        if (replayed == runs) == (kind == "replayed")
                    ]
                    style: Any = {"fillstyle": fill, "label": kind, "color": _COLOURS[0]}
                    axes.plot([x for x, _ in own], [y for _, y in own], "o", **style)
                front, keys = points(x[best], y[best]), []
                line: Any = {"color": _COLOURS[1], "label": "front", "drawstyle": "steps-post"}
                axes.plot([x for x, _ in front.index], [y for _, y in front.index], **line)
                for number, (place, rows) in enumerate(front.items(), 1):
                    axes.annotate(str(number), place, (3, 4), textcoords="offset points")
                    named = ", ".join(rows[:2]) + " …" * (len(rows) > 2)
                    keys.append(one_line(f"{number}: {named}"))
                low, high = axes.get_ylim()  # Below the points is room for the names.
                axes.set_ylim(low - 0.1 * len(keys) * (high - low), high)
                corner: Any = {"ha": "right", "va": "bottom", "transform": axes.transAxes}
                axes.text(1, 0, "\n".join(keys), fontsize=6, **corner)

            metric = METRICS[key]
            yield Panel(f"{protocol}: {metric.title}", "backbones", metric.heading, draw)


def _measures(result: StudyResult) -> Iterable[Panel]:
    """Yield each saturation measure over tasks; dividers: expansions of the first run."""
    for protocol in result.protocols:
        runs = [one.record for row in result.rows for one in result.runs(row, protocol)]
        for name in measures_of(runs[0]) if runs else ():

            def draw(axes: "Axes", name: str = name, runs: Sequence[RunRecord] = runs) -> None:
                known = [of[name] for run in runs if name in (of := measures_of(run))]
                means, deviations = _over(zip(*known, strict=False))
                tasks = range(1, len(means) + 1)
                axes.errorbar(tasks, means, deviations, marker="o", capsize=2)
                for task in expansions(runs[0]):
                    axes.axvline(task - 0.5, **_DIVIDER)

            yield Panel(name.replace("_", " "), "task", "", draw)


def _over(columns: Iterable[Sequence[float | None]]) -> "tuple[pd.Series[float], pd.Series[float]]":
    """Return means and deviations of the columns; NaN where a value is unknown."""
    import pandas as pd

    frame = pd.DataFrame(list(columns), dtype=float)
    return frame.mean(axis=1, skipna=False), frame.std(axis=1).fillna(0.0)


def _known(values: Iterable[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]


def _style(number: int) -> dict[str, Any]:
    """Return colour and dash of a line by its place; a line looks the same in all panels."""
    dash = _DASHES[number // len(_COLOURS) % len(_DASHES)]
    return {"color": _COLOURS[number % len(_COLOURS)], "linestyle": dash}


def _label(text: str) -> str:
    """Return a name for a figure: to lay out a long one takes minutes.

    A space comes first if it would be left out of the legend, as what begins with an underscore.
    """
    return one_line(f" {text}" if text.startswith("_") else text, 200)


def _with_limit(title: str, what: str, number: int) -> str:
    more = f"{_MOST_LINES} of {number} {what}" if number > _MOST_LINES else ""
    return ": ".join(filter(None, (title, more)))


def _names(axes: "Axes", names: Sequence[str]) -> None:
    """Put names below the x axis in place of numbers, turned if they are many."""
    turned: Any = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    is_crowded = sum(map(len, names)) > 40
    axes.set_xticks(range(len(names)), [*map(_label, names)], **(turned if is_crowded else {}))


def drawn(panels: Sequence[Panel]) -> str:
    """Draw panels, two in a row, over a legend; return SVG text, empty if nothing was drawn.

    Our settings count, not the user's own.
    """
    # It would tell on stderr that it builds its cache of fonts.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    out, columns = io.StringIO(), min(2, max(1, len(panels)))
    rows = -(-max(1, len(panels)) // columns)
    with mpl.rc_context(), warnings.catch_warnings():
        # Texts stay texts in the file, so that the reader's fonts count, not those found here.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        figure = Figure(figsize=(_WIDTH * columns, _HEIGHT * rows), layout="constrained")
        for place, panel in enumerate(panels, start=1):
            axes = figure.add_subplot(rows, columns, place)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if panel.up == "backbones":
                axes.locator_params("y", integer=True)
            panel.draw(axes)
            axes.set_title(_label(panel.title))
            axes.set_xlabel(panel.across)
            axes.set_ylabel(panel.up)
        if not any(axes.has_data() for axes in figure.axes):
            return ""
        _legend(figure, columns)
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", metadata=nothing)
    svg = out.getvalue()
    # Two decimals of a point are enough for every screen; texts keep all of theirs.
    number = re.compile(r"(?<![\w#-])(-?\d+\.\d{2})\d+")
    return re.sub("<[^>]+>", lambda tag: number.sub(r"\1", tag[0]), svg[svg.index("<svg") :])


def _legend(figure: Any, columns: int) -> None:  # noqa: ANN401 - of matplotlib
    """Draw one legend below all panels; lines of one label share an entry."""
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        lines, labels = axes.get_legend_handles_labels()
        entries = dict(zip(labels, lines, strict=True)) | entries
    if not entries:
        return
    across = min(2 * columns, len(entries))
    figure.legend(entries.values(), entries, loc="outside lower center", ncols=across)
    figure.set_figheight(figure.get_figheight() + 0.2 * (-(-len(entries) // (2 * columns)) - 1))
