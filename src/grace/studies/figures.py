"""Figures as SVG texts by matplotlib, one function for each; the same numbers give the same bytes.

Texts are drawn as they are: nothing in a name is read as a formula or as markup. matplotlib is
imported when a figure is drawn, not before.
"""

import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from grace.base.words import printable
from grace.runs.model import RunRecord, TaskRecord
from grace.studies.cells import expansions
from grace.studies.frame import METRICS
from grace.studies.measures import measures_of
from grace.studies.pareto import Point, by_seed, front, mean_points, merged
from grace.studies.results import Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Series = Mapping[str, Sequence[RunRecord]]
"""Runs by the name of their line."""
_COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"),
    *("#56B4E9", "#A65628", "#332288", "#4D4D4D", "#000000"),
)
"""Seven of Okabe and Ito's colours (their yellow is too pale) and three more."""
_DASHES: Sequence[Any] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
_MOST_LINES = 12
"""Further lines would make a figure unreadable: they are left out, as its title says."""
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


def study_figures(results: Results) -> Mapping[str, str]:
    """Return the SVG text of every figure that a study names and has numbers for."""
    draw: Mapping[str, Callable[[Results], str]] = {
        "accuracy": _accuracy,
        "backbones": _backbones,
        "protocols": _protocols,
        "front": _fronts,
        "measures": _measures,
        "bars": _bars,
    }
    found = {name: draw[name](results) for name in results.made.study.figures}
    return {name: text for name, text in found.items() if text}


def over_tasks(
    panels: Mapping[str, Series], value: Callable[[TaskRecord], float | None], title: str
) -> str:
    """Draw means over runs for every task, with a band of one standard deviation.

    Args:
        panels: runs by the title of their panel.
        value: number of a task; a line ends where a run has none.
        title: of the y axis.
    """
    with _drawing(len(panels)) as (axes, texts):
        for place, (name, series) in zip(axes, panels.items(), strict=True):
            for number, (label, records) in enumerate(list(series.items())[:_MOST_LINES]):
                columns = zip(*(map(value, r.tasks) for r in records), strict=False)
                means, deviations = _over(columns)
                tasks = range(1, len(means) + 1)
                place.plot(tasks, means, label=_label(label), marker="o", **_style(number))
                ends = [*zip(means, deviations, strict=True)]
                low, high = [m - d for m, d in ends], [m + d for m, d in ends]
                if any(deviations):
                    colour = _style(number)["color"]
                    place.fill_between(tasks, low, high, alpha=0.15, linewidth=0, color=colour)
            more = f"{_MOST_LINES} of {len(series)} lines" if len(series) > _MOST_LINES else ""
            _name(place, ": ".join(filter(None, (name, more))), "task", title)
    return texts[0]


def saturation(records: Sequence[RunRecord]) -> str:
    """Draw each run's saturation (line) against its threshold (dots), with its expansions."""
    with _drawing(len(records)) as (axes, texts):
        for place, record in zip(axes, records, strict=True):
            known = [task for task in record.tasks if task.saturation is not None]
            tasks = [task.task for task in known]
            nan = float("nan")
            place.plot(
                tasks,
                [nan if t.saturation is None else t.saturation for t in known],
                marker="o",
                label="saturation",
            )
            bound = [nan if t.threshold is None else t.threshold for t in known]
            place.plot(tasks, bound, ":", label="threshold")
            for task in expansions(record):
                place.axvline(task, color="#555555", linestyle=(0, (3, 2)), lw=0.9, zorder=1)
            _name(place, f"{record.method}, seed {record.seed}", "task (dashed: grow)", "0 to 1")
    return texts[0]


def matrices(record: RunRecord) -> str:
    """Draw the accuracy on each task after each task, and the last confusion in percent."""
    task = next((task for task in reversed(record.tasks) if task.confusion), None)
    rows = task.confusion if task is not None and task.confusion is not None else ()
    confusion = [[100 * n / max(1, sum(row)) for n in row] for row in rows]
    found: dict[tuple[str, str, str, int], Sequence[Sequence[float | None]]] = {
        ("accuracy (%)", "classes of task", "after task", 1): record.matrix
    }
    if confusion:
        found["confusion (%)", "called", "true class", 0] = confusion
    with _drawing(len(found)) as (axes, texts):
        for place, ((title, across, down, first), values) in zip(axes, found.items(), strict=True):
            size = len(values)
            extent = (first - 0.5, first + size - 0.5, first + size - 0.5, first - 0.5)
            grid = [[float("nan") if v is None else v for v in row] for row in values]
            image = place.imshow(grid, vmin=0, vmax=100, cmap="Blues", extent=extent)
            place.figure.colorbar(image, ax=place, shrink=0.8)
            place.grid(visible=False)
            _name(place, title, across, down)
    return texts[0]


def _accuracy(results: Results) -> str:
    def all_seen(task: TaskRecord) -> float | None:
        return task.accuracy.all if task.accuracy else None

    return over_tasks(_ranked(results), all_seen, "accuracy on all classes seen (%)")


def _backbones(results: Results) -> str:
    return over_tasks(_ranked(results), lambda task: task.backbones, "backbones")


def _ranked(results: Results) -> Mapping[str, Series]:
    """Return the runs of the ranked rows by protocol and row."""
    return {
        protocol: {
            results.label(row): [one.record for one in found]
            for row in results.ranked(protocol)
            if (found := results.found(row, protocol))
        }
        for protocol in results.protocols
    }


def _protocols(results: Results) -> str:
    """Draw metrics by protocol, as in the paper's first figure."""
    # The ranked ones come first, so that a row looks the same in all figures.
    rows = sorted(results.rows, key=lambda row: not results.settings(row).ranked)
    with _drawing(2) as (axes, texts):
        for place, key in zip(axes, ("average", "parameters"), strict=True):
            means = results.means[key].unstack("protocol")
            for number, row in enumerate(rows[:_MOST_LINES]):
                values = [means.at[row, protocol] for protocol in results.protocols]
                label = _label(results.label(row))
                place.plot(range(len(values)), values, label=label, marker="o", **_style(number))
            _names(place, results.protocols)
            more = f"{_MOST_LINES} of {len(rows)} rows" if len(rows) > _MOST_LINES else ""
            _name(place, more, "", METRICS[key].heading)
    return texts[0]


def _bars(results: Results) -> str:
    """Draw the mean and deviation of every row, a panel for Last and Avg of each protocol."""
    panels = [(protocol, key) for protocol in results.protocols for key in ("last", "average")]
    with _drawing(len(panels)) as (axes, texts):
        for place, (protocol, key) in zip(axes, panels, strict=True):
            rows = results.rows_in(protocol)
            means, deviations = results.means.loc[protocol], results.deviations.loc[protocol]
            y, error = means.loc[rows, key], deviations.loc[rows, key]
            place.errorbar(range(len(rows)), y, error, fmt="o", capsize=2)
            _names(place, [results.label(row) for row in rows])
            _name(place, protocol, "", METRICS[key].heading)
    return texts[0]


def _fronts(results: Results) -> str:
    """Draw backbones against Avg and Last of a grid's rows; numbered points stand on the front.

    Filled: some run was trained for it; hollow: all its runs are replayed.
    """
    panels = [(protocol, key) for protocol in results.protocols for key in ("average", "last")]
    with _drawing(len(panels)) as (axes, texts):
        for place, (protocol, key) in zip(axes, panels, strict=True):
            measured = by_seed(results, protocol, key)
            points, best = merged(mean_points(measured)), front(mean_points(measured))
            for is_replayed, kind, fill in ((False, "trained", "full"), (True, "replayed", "none")):
                own = [p for p in points if _is_replayed(results, p, protocol) == is_replayed]
                x, y = [p.x for p in own], [p.y for p in own]
                place.plot(x, y, "o", fillstyle=fill, label=kind, color=_COLOURS[0])
            x, y = [p.x for p in best], [p.y for p in best]
            place.plot(x, y, drawstyle="steps-post", color=_COLOURS[1], label="front")
            keys = []
            for number, point in enumerate(best, 1):
                place.annotate(str(number), (point.x, point.y), (3, 4), textcoords="offset points")
                more = " …" if len(point.labels) > 2 else ""
                keys.append(printable(f"{number}: {', '.join(point.labels[:2])}{more}"))
            corner: Any = {"ha": "right", "va": "bottom", "transform": place.transAxes}
            place.text(1, 0, "\n".join(keys), fontsize=6, **corner)
            _name(place, f"{protocol}: {METRICS[key].title}", "backbones", METRICS[key].heading)
    return texts[0]


def _is_replayed(results: Results, point: Point, protocol: str) -> bool:
    replayed, runs = results.origin(point.labels, protocol)
    return replayed == runs


def _measures(results: Results) -> str:
    """Draw each saturation measure over tasks, with the expansions of the first run as dividers."""
    found = {
        (protocol, name): runs
        for protocol in results.protocols
        if (runs := [o.record for row in results.rows for o in results.found(row, protocol)])
        for name in measures_of(runs[0])
    }
    with _drawing(len(found)) as (axes, texts):
        for place, ((_, name), runs) in zip(axes, found.items(), strict=True):
            known = [of[name] for run in runs if name in (of := measures_of(run))]
            means, deviations = _over(zip(*known, strict=False))
            place.errorbar(range(1, len(means) + 1), means, deviations, marker="o", capsize=2)
            for task in expansions(runs[0]):
                place.axvline(task - 0.5, color="#555555", linestyle=(0, (3, 2)), lw=0.9, zorder=1)
            _name(place, name.replace("_", " "), "task", "")
    return texts[0]


def _over(columns: Iterator[Sequence[float | None]]) -> tuple[list[float], list[float]]:
    """Return means and deviations of the columns; NaN where a value is unknown."""
    import pandas as pd

    frame = pd.DataFrame(list(columns), dtype=float)
    means, deviations = frame.mean(axis=1, skipna=False), frame.std(axis=1)
    return means.tolist(), deviations.fillna(0.0).tolist()


def _style(number: int) -> dict[str, Any]:
    """Return colour and dash of a line by its place; a line looks the same in all panels."""
    dash = _DASHES[number // len(_COLOURS) % len(_DASHES)]
    return {"color": _COLOURS[number % len(_COLOURS)], "linestyle": dash}


def _label(text: str) -> str:
    """Return a name for the legend, which leaves out what begins with an underscore."""
    return f" {printable(text)}" if text.startswith("_") else printable(text)


def _name(axes: "Axes", title: str, across: str, up: str) -> None:
    axes.set_title(printable(title))
    axes.set_xlabel(printable(across))
    axes.set_ylabel(printable(up))


def _names(axes: "Axes", names: Sequence[str]) -> None:
    """Put names below the x axis in place of numbers, turned if they are many."""
    turned: Any = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
    is_crowded = sum(map(len, names)) > 40
    axes.set_xticks(range(len(names)), [*map(printable, names)], **(turned if is_crowded else {}))


@contextmanager
def _drawing(number: int) -> "Iterator[tuple[Sequence[Axes], list[str]]]":
    """Give panels, two in a row, to draw on; then put the SVG text, with a legend, into the list.

    The text is empty where nothing was drawn. Our settings count, not the user's own.
    """
    # It would tell on stderr that it builds its cache of fonts.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    texts, columns = [""], min(2, max(1, number))
    rows = -(-max(1, number) // columns)
    with mpl.rc_context(), warnings.catch_warnings():
        # Texts stay texts in the file, so that the reader's fonts count, not those found here.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        figure = Figure(figsize=(_WIDTH * columns, _HEIGHT * rows), layout="constrained")
        axes = [figure.add_subplot(rows, columns, place) for place in range(1, number + 1)]
        for place in axes:
            place.xaxis.set_major_locator(MaxNLocator(integer=True))
        yield axes, texts
        if not any(place.has_data() for place in axes):
            return
        _legend(figure, axes)
        out = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", metadata=nothing)
    svg = out.getvalue()
    # Two decimals of a point are enough for every screen.
    texts[0] = re.sub(r"(?<![\w#-])(-?\d+\.\d{2})\d+", r"\1", svg[svg.index("<svg") :])


def _legend(figure: Any, axes: "Sequence[Axes]") -> None:  # noqa: ANN401 - of matplotlib
    """Draw one legend below all panels; lines of one label share an entry."""
    entries: dict[str, Any] = {}
    for place in axes:
        lines, labels = place.get_legend_handles_labels()
        entries = dict(zip(labels, lines, strict=True)) | entries
    if not entries:
        return
    columns = 4 if len(axes) > 1 else 2
    figure.legend(
        entries.values(), entries, loc="outside lower center", ncols=min(columns, len(entries))
    )
    figure.set_figheight(figure.get_figheight() + 0.2 * (-(-len(entries) // columns) - 1))
