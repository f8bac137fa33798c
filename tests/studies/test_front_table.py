"""The table of a grid's front, by hand."""

from typing import Any

from grace.studies.front_table import FRONT_HEADINGS, front_tables
from grace.studies.study_results import Results
from grace.studies.study_sheets import study_sheets
from support.synthetic_records import MakeRecord
from support.synthetic_studies import Numbers, made

GRID = {
    "method": "grace",
    "grid": {"method.threshold": [0.5, 0.6, 0.7], "method.threshold_decay": [0.9]},
}


def results(make_record: MakeRecord, **study: Any) -> Results:
    # Last, Avg, backbones. Means of Avg: 61.1, 61, 61 at 3, 2 and 3 backbones.
    numbers: Numbers = {
        "0.5/0.9": [(50, 62, 3), (50, 61, 3), (50, 60.3, 3)],
        "0.6/0.9": [(50, 60, 2), (50, 62, 2), (50, 61, 2)],
        "0.7/0.9": [(50, 60, 3), (50, 62, 3), (50, 61, 3)],
    }
    return made(make_record, numbers, rows={"pairs": GRID}, **study)


def test_fronts_of_means_and_of_seeds_by_hand(make_record: MakeRecord) -> None:
    found = results(make_record, figures=["front"])
    # Seed 1: 0.5 is better in Avg than 0.6. Seeds 2 and 3: 0.6 is better in both. 0.7 has the Avg
    # of 0.6 and one backbone more: it is never on a front, but no Avg is higher beyond noise.
    [table] = front_tables(found)
    [_, (name, sheet)] = study_sheets(found)
    assert name == "b0i10: front of backbones and Avg"
    assert [[cell.text for cell in row] for row in sheet.rows] == [
        ["0.5/0.9", "yes", "1 of 3", "0"],
        ["0.6/0.9", "yes", "3 of 3", "0"],
        ["0.7/0.9", "no", "0 of 3", "0"],
    ]
    lines = [dict(zip(FRONT_HEADINGS, line, strict=True)) for line in table.numbers()]
    assert lines[0] == {
        "protocol": "b0i10",
        "row": "0.5/0.9",
        "on_front": 1,
        "seeds_on_own_front": 1,
        "seeds": 3,
        "dominated_by": 0,
    }


def test_what_is_missing_is_said(make_record: MakeRecord) -> None:
    numbers: Numbers = {"0.5/0.9": [(50, 62, 3)] * 3, "0.6/0.9": [(50, 61, 2)], "0.7/0.9": []}
    study: dict[str, Any] = {
        "rows": {"pairs": GRID, "more": {"method": "grace", "grid": {"memory.size": [9]}}},
        "figures": ["front"],
    }
    [table] = front_tables(made(make_record, numbers, chosen=("pairs",), **study))
    # One seed shows no noise.
    assert [[cell.text for cell in row] for row in table.shown().rows] == [
        ["0.5/0.9", "yes", "1 of 1", "–"],
        ["0.6/0.9", "yes", "1 of 1", "–"],
        ["0.7/0.9", "–", "–", "–"],
    ]
    assert [line[-1] for line in table.numbers()] == [None, None]
    assert table.shown().notes[1:] == (
        "compared over the seeds that all pairs with a run have: 1 of 3",
        "not all pairs were chosen: others may be better than those on the front",
    )


def test_only_a_study_that_draws_the_front_has_its_table(make_record: MakeRecord) -> None:
    assert front_tables(results(make_record, figures=["bars"])) == ()
    rows = {"der": [(50, 62, 3)]}
    assert list(front_tables(made(make_record, rows, figures=["front"]))) == []
