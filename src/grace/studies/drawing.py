"""Static figures for print: panels of lines, steps, points and fronts as one SVG file.

The same panels give the same bytes. matplotlib is imported when a figure is drawn, not before.
Texts are drawn as they are: nothing in a name is read as a formula or as markup.
"""

import io
import logging
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from grace.base.atomic import write_text
from grace.base.words import printable
from grace.studies.figures import STYLES, Style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox


@final
@dataclass(frozen=True, kw_only=True)
class Series:
    """One line or cloud of points of a panel.

    Args:
        x: one number for each point.
        y: one for each point; ``None`` leaves a gap.
        label: its name in the legend; series of one label share an entry. Empty: no entry.
        kind: "line" joins the points, "steps" holds each value until the next point, "points" joins
            nothing, "front" draws steps and rings around the points.
        x_error: half the length of each point's horizontal bar; ``None`` draws no bar.
        y_error: half the length of each point's vertical bar.
        texts: a short text beside each point, or none at all.
        style: colour and dash; ``None``: by its place in the panel.
        fill: how much of a marker is filled, for points of another origin than the others.
    """

    x: Sequence[float]
    y: Sequence[float | None]
    label: str = ""
    kind: Literal["line", "steps", "points", "front"] = "line"
    x_error: Sequence[float | None] | None = None
    y_error: Sequence[float | None] | None = None
    texts: Sequence[str] = ()
    style: Style | None = None
    fill: Literal["full", "half", "none"] = "full"

    def __post_init__(self) -> None:
        for values in (self.y, self.x_error, self.y_error, self.texts or None):
            assert values is None or len(values) == len(self.x)


@final
@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes.

    Args:
        series: drawn in this order.
        title: above it.
        x_title: below it.
        y_title: at its left.
        dividers: x of dashed vertical lines, such as expansions.
        x_names: names of x = 0, 1, 2, … instead of numbers.
        whole_x: True if x counts something, so that no fraction stands on its axis.
        y_range: lowest and highest y shown; ``None``: as the points need.
    """

    series: Sequence[Series]
    title: str = ""
    x_title: str = ""
    y_title: str = ""
    dividers: Sequence[float] = ()
    x_names: Sequence[str] = ()
    whole_x: bool = True
    y_range: tuple[float, float] | None = None


_DASHES: Mapping[str, Any] = {
    "solid": "-",
    "dash": (0, (5, 2)),
    "dot": (0, (1, 1.5)),
    "dashdot": (0, (5, 2, 1, 2)),
    "longdash": (0, (9, 3)),
}
_MOST_CHARACTERS = 40
"""Names of more characters do not fit below a panel side by side."""
_MARKERS = "os^DvPX*<>"
_WIDTH, _HEIGHT = 3.6, 2.7
"""Inches of one panel, with the legend's first row."""
_FOR_TEXTS = 0.9
"""Inches that a panel is higher if texts stand beside its points."""
_LEGEND_ROW = 0.2
"""Inches of each row of the legend after its first, for which a panel has room."""
_BESIDE: Sequence[tuple[tuple[int, int], str, str]] = (
    ((4, 3), "left", "bottom"),
    ((4, -3), "left", "top"),
    ((-4, 3), "right", "bottom"),
    ((-4, -3), "right", "top"),
    ((4, 12), "left", "bottom"),
    ((4, -12), "left", "top"),
    ((-4, 12), "right", "bottom"),
    ((-4, -12), "right", "top"),
)
"""Where a text may stand beside its point: offset in points, and the corner that is nearest."""
_POINT = 3
"""Half the width of a point, in dots; no text shall cover it."""
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
    "lines.markersize": 4.5,
}


def svg(panels: Sequence[Panel], *, columns: int = 2, title: str = "") -> str:
    """Draw panels side by side, with one legend below them.

    Args:
        panels: at least one, row by row.
        columns: most panels in a row.
        title: above all panels.

    Returns:
        The SVG document.
    """
    assert panels
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    with _settings():
        from matplotlib.figure import Figure

        has_texts = any(series.texts for panel in panels for series in panel.series)
        height = _HEIGHT + (_FOR_TEXTS if has_texts else 0)
        figure = Figure(figsize=(_WIDTH * columns, height * rows), layout="constrained")
        entries: dict[str, Any] = {}
        texts = [
            _draw(figure.add_subplot(rows, columns, place), panel, entries)
            for place, panel in enumerate(panels, 1)
        ]
        if title:
            figure.suptitle(printable(title))
        _legend(figure, entries, 4 if columns > 1 else 2)
        _part(figure, panels, texts)
        out = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(out, format="svg", metadata=nothing)
    return out.getvalue()


def write_svg(
    path: str | Path, panels: Sequence[Panel], *, columns: int = 2, title: str = ""
) -> Path:
    """Write panels as :func:`svg` draws them; a file in its place is replaced.

    Args:
        path: the file.
        panels: at least one, row by row.
        columns: most panels in a row.
        title: above all panels.

    Returns:
        The path.
    """
    target = Path(path)
    write_text(target, svg(panels, columns=columns, title=title))
    return target


@contextmanager
def _settings() -> Iterator[None]:
    """Draw with our settings, whatever the user's own settings of matplotlib are."""
    # It would tell on stderr that it builds its cache of fonts.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib as mpl

    with mpl.rc_context(), warnings.catch_warnings():
        # Texts stay texts in the file, so that the reader's fonts count, not those found here.
        warnings.filterwarnings("ignore", message="Glyph", category=UserWarning)
        mpl.rcdefaults()
        mpl.rcParams.update(_RC)
        yield


def _draw(axes: "Axes", panel: Panel, entries: dict[str, Any]) -> "list[Annotation]":
    """Draw one panel; add what its series look like to the legend; return its points' texts."""
    from matplotlib.ticker import MaxNLocator

    texts: list[Annotation] = []
    for number, series in enumerate(panel.series):
        drawn = _draw_series(axes, series, number)
        texts += _texts(axes, series)
        if series.label:
            entries.setdefault(series.label, drawn)
    for x in panel.dividers:
        axes.axvline(x, color="#555555", linestyle=(0, (3, 2)), linewidth=0.9, zorder=1)
    axes.set_title(printable(panel.title))
    axes.set_xlabel(printable(panel.x_title))
    axes.set_ylabel(printable(panel.y_title))
    if panel.x_names:
        names = [printable(name) for name in panel.x_names]
        is_crowded = sum(map(len, names)) > _MOST_CHARACTERS
        turned: Any = (
            {"rotation": 60, "ha": "right", "rotation_mode": "anchor"} if is_crowded else {}
        )
        axes.set_xticks(range(len(names)), names, **turned)
    elif panel.whole_x:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.y_range is not None:
        axes.set_ylim(*panel.y_range)
    return texts


def _draw_series(axes: "Axes", series: Series, number: int) -> Any:  # noqa: ANN401 - of matplotlib
    """Draw one series; return what the legend shows of it."""
    colour, dash = STYLES[number % len(STYLES)]
    if series.style is not None:
        colour, dash = series.style.colour, series.style.dash
    known = [place for place, style in enumerate(STYLES) if style[0] == colour]
    marker = _MARKERS[(known[0] if known else number) % len(_MARKERS)]
    is_front, y = series.kind == "front", _floats(series.y)
    return axes.errorbar(
        series.x,
        y,
        xerr=None if series.x_error is None else _floats(series.x_error),
        yerr=None if series.y_error is None else _floats(series.y_error),
        color=colour,
        linestyle="" if series.kind == "points" else _DASHES[dash],
        drawstyle="steps-post" if series.kind in ("steps", "front") else "default",
        marker="o" if is_front else marker,
        markersize=8 if is_front else 4.5,
        fillstyle="left" if series.fill == "half" else "full",
        markerfacecolor="none" if is_front else "white" if series.fill == "none" else colour,
        markerfacecoloralt="white",
        elinewidth=0.8,
        capsize=2,
        zorder=2 if is_front else 3,
    )


def _texts(axes: "Axes", series: Series) -> "Iterator[Annotation]":
    """Draw the texts beside a series' points."""
    for x, y, text in zip(series.x, _floats(series.y), series.texts, strict=False):
        if math.isfinite(y):
            beside = _BESIDE[0][0]
            yield axes.annotate(
                printable(text),
                (x, y),
                beside,
                textcoords="offset points",
                fontsize=7,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.5},
            )


def _part(
    figure: "Figure", panels: Sequence[Panel], texts: "Sequence[Sequence[Annotation]]"
) -> None:
    """Move each text to the place beside its point, inside its panel, that covers least."""
    from matplotlib.transforms import Bbox

    if any(texts):
        figure.draw_without_rendering()  # Fixes the panels, so that texts have their extents.
    for axes, panel, own in zip(figure.axes, panels, texts, strict=True):
        shown = axes.get_window_extent()
        points = [
            axes.transData.transform(point)
            for series in panel.series
            for point in zip(series.x, _floats(series.y), strict=True)
            if math.isfinite(point[1])
        ]
        taken = [Bbox([point - _POINT, point + _POINT]) for point in points]
        for text in own:
            extents = [_put(text, place) for place in range(len(_BESIDE))]
            covered = [
                extent.count_overlaps(taken)
                + (extent.x0 < shown.x0 or extent.x1 > shown.x1)
                + (extent.y0 < shown.y0 or extent.y1 > shown.y1)
                for extent in extents
            ]
            taken.append(_put(text, covered.index(min(covered))))


def _put(text: "Annotation", place: int) -> "Bbox":
    """Put a text at one of the places beside its point; return its extent."""
    offset, across, along = _BESIDE[place]
    text.set(position=offset, horizontalalignment=across, verticalalignment=along)
    return text.get_window_extent()


def _floats(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]


def _legend(figure: "Figure", entries: Mapping[str, Any], columns: int) -> None:
    if not entries:
        return
    # A label that begins with "_" would be left out: the texts are set afterwards.
    places = [str(place) for place in range(len(entries))]
    legend = figure.legend(
        list(entries.values()),
        places,
        loc="outside lower center",
        ncols=min(columns, len(entries)),
        frameon=False,
    )
    for text, label in zip(legend.get_texts(), entries, strict=True):
        text.set_text(printable(label))
    rows = -(-len(entries) // columns)
    figure.set_figheight(figure.get_figheight() + _LEGEND_ROW * (rows - 1))
