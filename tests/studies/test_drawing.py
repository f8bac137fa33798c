"""Static figures: one document for the same panels, texts as they are."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import pytest

from grace.studies.drawing import Panel, Series, svg, write_svg
from grace.studies.figures import STYLES, Style

NAMESPACE = {"svg": "http://www.w3.org/2000/svg"}
PANELS = [
    Panel(
        title="Effective rank",
        x_title="task",
        y_title="value",
        series=[
            Series(x=[1, 2, 3], y=[0.3, None, 0.5], label="seed 1", y_error=[0.01, None, 0.02]),
            Series(x=[1, 2, 3], y=[100, 200, 200], label="backbones", kind="steps"),
        ],
        dividers=[2, 3],
    ),
    Panel(
        x_title="backbones",
        series=[
            Series(x=[2, 3, 5], y=[60, 61, 62], kind="front", label="front"),
            Series(
                x=[2, 3, 3, 5, 5],
                y=[60, 61, 60.5, 61, 62],
                kind="points",
                texts=["A, F", "B", "C", "D", "E"],
                x_error=[0.0, 0.5, 0, 0, 0],
                fill="none",
            ),
        ],
    ),
]


def texts(document: str) -> list[str]:
    root = ET.fromstring(document)  # noqa: S314 - our own
    return ["".join(node.itertext()) for node in root.iterfind(".//svg:text", NAMESPACE)]


def test_the_same_panels_give_the_same_bytes_in_another_process() -> None:
    script = "from studies.test_drawing import PANELS, svg; print(svg(PANELS), end='')"
    tests = str(Path(__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {tests!r}); {script}"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert other.stdout.decode() == svg(PANELS) == svg(PANELS)
    assert "<dc:date>" not in svg(PANELS)


def test_everything_is_drawn() -> None:
    found = texts(svg(PANELS, title="Figure 5"))
    expected = ["Figure 5", "Effective rank", "task", "value", "backbones", "seed 1", "front"]
    assert set(expected) <= set(found)
    assert {"A, F", "B", "C", "D", "E"} <= set(found)
    # What counts has no fractions: tasks here, and backbones there.
    assert {"1", "2", "3", "5"} <= set(found)
    assert not {"1.25", "2.5", "3.5", "4.5"} & set(found)


def placed(
    *series: Series, y_range: tuple[float, float] | None = None
) -> tuple[list[float], dict[str, tuple[str, float]]]:
    """The heights of the points, and each text's anchor and height; down is more."""
    root = ET.fromstring(svg([Panel(series=series, y_range=y_range)]))  # noqa: S314 - our own
    marks = root.findall(".//svg:use", NAMESPACE)
    points = [float(mark.attrib["y"]) for mark in marks if "fill" in mark.attrib["style"]]
    found = {}
    for node in root.iterfind(".//svg:text", NAMESPACE):
        anchor = node.attrib["style"].rpartition("text-anchor: ")[2]
        found["".join(node.itertext())] = (anchor, float(node.attrib["y"]))
    return points, found


def points(x: Sequence[float], y: Sequence[float], texts: Sequence[str] = ()) -> Series:
    return Series(x=x, y=y, texts=texts, kind="points")


def test_texts_stand_inside_the_panel() -> None:
    _, found = placed(points([0, 1], [0, 1], ["first", "last"]))
    assert (found["first"][0], found["last"][0]) == ("start", "end")
    # Right of the first point there is a neighbour above and one below; left of it is the edge.
    _, found = placed(points([0, 0.06, 0.06, 1], [0.5, 0.53, 0.47, 1], ["a long text", "", "", ""]))
    assert found["a long text"][0] == "start"
    # The lowest point has a neighbour above at its right: the text stands higher, not below.
    lowest = points([0, 0.06, 1], [0, 0.03, 1], ["a long text", "", ""])
    heights, found = placed(lowest, y_range=(0, 1))
    assert found["a long text"][1] < heights[0]


@pytest.mark.parametrize(("neighbour", "is_above"), [(0.03, False), (-0.03, True)])
def test_texts_cover_no_point(neighbour: float, is_above: bool) -> None:
    """The neighbour, which has no text, is right of the point and a little above, or below."""
    named = points([0, 1], [0.5, 1], ["a long text", ""])
    heights, found = placed(named, points([0.06, 0], [0.5 + neighbour, 0]))
    assert (found["a long text"][1] < heights[0]) is is_above


def test_texts_part_and_points_are_seen_through_their_ground() -> None:
    """Of two points at one place the texts stand above and below."""
    same = points([0, 0.5, 0.5, 1], [0, 0.5, 0.5, 1], ["", "one", "another", ""])
    heights, found = placed(same)
    assert found["one"][1] < heights[1] < found["another"][1]
    assert "opacity: 0.7" in svg([Panel(series=[same])])
    plain = svg([Panel(series=[points([0, 1], [0, 1])])])
    assert height(svg([Panel(series=[same])])) > height(plain)


def height(document: str) -> float:
    return float(ET.fromstring(document).attrib["height"].removesuffix("pt"))  # noqa: S314 - our own


def test_colours_and_dashes_are_those_of_the_page() -> None:
    document = svg(
        [Panel(series=[Series(x=[1, 2], y=[1, 2], style=Style("g0", "#783000", "dash"))])]
    )
    assert "stroke: #783000" in document
    assert "stroke-dasharray" in document
    alone = svg([Panel(series=[Series(x=[1, 2], y=[1, 2])])])
    assert STYLES[0][0].lower() in alone


@pytest.mark.parametrize(
    "name",
    [
        "$x^2$",
        "<script>alert(1)</script>",
        "_hidden",
        "a & b",
        r"\frac",
        "老虎",
        "two\nlines",
        "50 %",
    ],
)
def test_names_are_drawn_as_they_are(name: str) -> None:
    series = Series(x=[0], y=[1], label=name, texts=[name], kind="points")
    panel = Panel(series=[series], title=name, x_title=name, y_title=name, x_names=[name])
    document = svg([panel], title=name)
    shown = name.replace("\n", r"\n")
    assert texts(document).count(shown) == 7
    assert "<script" not in document


@pytest.mark.parametrize("entries", [5, 9, 16])
def test_a_long_legend_takes_no_room_from_the_panel(entries: int) -> None:
    def height(entries: int) -> float:
        series = [Series(x=[1, 2], y=[1, 2], label=f"row {number}") for number in range(entries)]
        root = ET.fromstring(svg([Panel(series=series)]))  # noqa: S314 - our own
        corners = root.find(".//svg:g[@id='patch_2']/svg:path", NAMESPACE).attrib["d"]
        ends = [float(corner.split()[1]) for corner in re.findall(r"[ML] ([\d.]+ [\d.]+)", corners)]
        return max(ends) - min(ends)

    assert height(entries) >= height(2) - 3


def test_the_users_own_settings_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib as mpl

    before = svg(PANELS)
    monkeypatch.setitem(mpl.rcParams, "lines.linewidth", 9)
    monkeypatch.setitem(mpl.rcParams, "text.usetex", True)
    assert svg(PANELS) == before
    assert mpl.rcParams["lines.linewidth"] == 9


def test_written_whole_and_replaced(tmp_path: Path) -> None:
    target = tmp_path / "figure.svg"
    target.write_text("old")
    assert write_svg(target, PANELS, columns=1) == target
    assert target.read_text().rstrip().endswith("</svg>")


def test_no_matplotlib_before_a_figure_is_drawn() -> None:
    code = (
        "import sys, grace.studies.drawing; assert not {'matplotlib', 'torch'} & sys.modules.keys()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
