"""The figure of a run, drawn from its record."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from grace.runs import RunRecord

SCRIPT = Path(__file__).parents[2] / "docs" / "figures" / "draw_dynamics.py"
NAMESPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def draw() -> Callable[[RunRecord], str]:
    drawn: Any = runpy.run_path(str(SCRIPT))["draw"]
    return drawn


def heights(svg: ET.Element) -> list[float]:
    """Heights of the bars of backbones; the first rectangle is the ground."""
    return [float(bar.attrib["height"]) for bar in svg.findall(f"{NAMESPACE}rect")[1:]]


def test_bars_are_as_high_as_there_are_backbones(
    draw: Callable[[RunRecord], str], make_record: Callable[..., RunRecord]
) -> None:
    record = make_record("grace", task_sizes=(2,) * 8)
    svg = ET.fromstring(draw(record))  # noqa: S314 - our own text
    counts = [task.backbones for task in record.tasks]
    found = heights(svg)
    assert found == pytest.approx([count * 96 / max(counts) for count in counts], abs=0.06)


def test_lines_have_a_point_for_each_task(
    draw: Callable[[RunRecord], str], make_record: Callable[..., RunRecord]
) -> None:
    svg = ET.fromstring(draw(make_record("grace")))  # noqa: S314
    lines = [line.attrib["points"].split() for line in svg.findall(f"{NAMESPACE}polyline")]
    # Old (from task 2), new, all; threshold and saturation of every task of this record.
    assert [len(points) for points in lines] == [4, 5, 5, 5, 5]
    # 670 pixels for 5 tasks, from 62: task 1 lies at 62 + 67.
    assert lines[2][0].startswith("129.0,")


def test_a_bar_compressed_for_want_of_room_is_hollow_and_explained(
    draw: Callable[[RunRecord], str], make_record: Callable[..., RunRecord]
) -> None:
    verdicts = ["start", "grow", "compress", "compress (budget)"]
    record = make_record("grace", task_sizes=(2,) * 4, verdicts=verdicts)
    svg = ET.fromstring(draw(record))  # noqa: S314
    bars = [(bar.attrib["fill"], bar.get("stroke")) for bar in svg.findall(f"{NAMESPACE}rect")[1:]]
    hollow = ("#ffffff", "#0072B2")
    assert bars == [("#7b8794", None), ("#D55E00", None), ("#0072B2", None), hollow]
    words = [text.text for text in svg.findall(f"{NAMESPACE}text")]
    assert "4 budget" in words
    assert "compress (budget)" in words
    plain = draw(make_record("grace", 2, verdicts=["start"] + ["grow"] * 4))
    assert "budget" not in plain


def test_names_of_people_do_not_break_it(
    draw: Callable[[RunRecord], str], make_record: Callable[..., RunRecord]
) -> None:
    record = make_record("joint", evaluated=[5], class_names=[f"<b>&{i}" for i in range(10)])
    assert len(heights(ET.fromstring(draw(record)))) == 5  # noqa: S314


def test_a_run_without_tasks_is_refused(
    draw: Callable[[RunRecord], str], make_record: Callable[..., RunRecord]
) -> None:
    with pytest.raises(ValueError, match="no finished task"):
        draw(make_record("grace", done=0, status="running"))
