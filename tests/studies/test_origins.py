"""Marks of replayed runs: one rule in tables, figures and the page."""

from pathlib import Path

import pytest

from grace.studies.origins import REPLAYED, Origin, by_origin, origin
from grace.studies.pareto import Point
from grace.studies.study_figures import study_figures
from grace.studies.study_page import write_study_page
from grace.studies.study_results import Results
from grace.studies.study_table import protocol_tables, shown
from support.synthetic_records import MakeRecord
from support.synthetic_studies import made

GRID = {
    "method": "grace",
    "grid": {"method.threshold": [0.4, 0.5, 0.6, 0.7], "method.threshold_decay": [0.9]},
}
TRAINED, SOME, ALL, SAME = "0.4/0.9", "0.5/0.9", "0.6/0.9", "0.7/0.9"


@pytest.fixture
def results(make_record: MakeRecord) -> Results:
    """Three points; the last has two pairs, one of them with two of three runs replayed."""
    numbers = {
        TRAINED: [(60, 70, 4)] * 3,
        ALL: [(60, 71, 2)] * 3,
        SOME: [(60, 69, 1)] * 3,
        SAME: [(60, 69, 1)] * 3,
    }
    replayed = [(row, seed) for row in (ALL, SAME) for seed in (1, 2, 3)] + [(SOME, 1), (SOME, 2)]
    return made(make_record, numbers, replayed, rows={"pairs": GRID}, figures=["front"])


@pytest.mark.parametrize(
    ("found", "name", "text"),
    [
        (Origin(0, 3), "trained", "a"),
        (Origin(1, 3), "partly replayed", "a (1 of 3 replayed)"),
        (Origin(8, 9), "partly replayed", "a (8 of 9 replayed)"),
        (Origin(3, 3), "replayed", "a (replayed)"),
        (Origin(0, 0), "trained", "a"),
    ],
)
def test_some_runs_or_all_of_them(found: Origin, name: str, text: str) -> None:
    assert (found.name, found.marked("a")) == (name, text)


def test_a_point_has_the_runs_of_all_its_pairs(results: Results) -> None:
    # Two of the three runs of one pair and all three of the other.
    assert origin(results, [SOME, SAME], "b0i10") == Origin(5, 6)
    points = [Point(1, 69, (SOME, SAME)), Point(2, 71, (ALL,)), Point(4, 70, (TRAINED,))]
    assert by_origin(results, points, "b0i10") == {
        "trained": points[2:],
        "partly replayed": points[:1],
        "replayed": points[1:2],
    }


def test_the_table_marks_rows_and_says_what_it_means(
    results: Results, make_record: MakeRecord
) -> None:
    sheet = shown(protocol_tables(results)[0], results)
    assert [row[0].text for row in sheet.rows] == [
        TRAINED,
        f"{SOME} (2 of 3 replayed)",
        f"{ALL} (replayed)",
        f"{SAME} (replayed)",
    ]
    assert sheet.notes == (REPLAYED,)
    plain = made(make_record, {"der": [(60, 70, 4)] * 3})
    assert shown(protocol_tables(plain)[0], plain).notes == ()


def test_the_figure_and_the_page_show_the_same_origins(results: Results, tmp_path: Path) -> None:
    for panel in study_figures(results)["front"]:
        looks = {one.label: (one.fill, list(one.x)) for one in panel.series}
        assert looks.pop("front")[0] == "full"
        assert looks == {
            "trained": ("full", [4]),
            "partly replayed": ("half", [1]),
            "replayed": ("none", [2]),
        }
    page = write_study_page(results, (), (), (), tmp_path / "page.html", "").read_text()
    for name, text in (
        ("trained", TRAINED),
        ("partly replayed", f"{SOME}, {SAME} (5 of 6 replayed)"),
        ("replayed", f"{ALL} (replayed)"),
    ):
        assert f'"name":"{name}"' in page
        assert f'"text":["{text}"]' in page
    assert REPLAYED.capitalize() in page
