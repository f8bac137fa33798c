"""The table of saturation measures, by hand and against numpy."""

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from grace.studies.measure_table import MEASURE_HEADINGS, measure_tables
from grace.studies.resolving import Found
from grace.studies.study_files import write_study
from grace.studies.study_results import Results
from grace.studies.study_sheets import study_sheets
from support.synthetic_records import MakeRecord
from support.synthetic_studies import made, with_measures

# Two ranges of three tasks, of two seeds.
RANK = ([0.3, 0.4, 0.5, 0.31, 0.42, 0.5], [0.3, 0.5, 0.4, 0.5, 0.4, 0.3])
NORM = ([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
VERDICTS = ("start", "compress", "compress", "grow", "compress", "compress")


def results(make_record: MakeRecord, verdicts: tuple[str, ...] = VERDICTS) -> Results:
    plain = made(
        make_record,
        {"grace": [(50, 60, 2)] * 3},
        rows={"grace": {"method": "grace", "label": "ours"}},
        figures=["measures"],
    )
    record = make_record("grace", task_sizes=(2,) * len(verdicts), verdicts=verdicts)
    found = {
        cell.run: Found(with_measures(record, {"effective_rank": rank, "weight_norm": norm}))
        for cell, rank, norm in zip(plain.made.cells, RANK, NORM, strict=False)
    }
    return Results(replace(plain.made, found=found))


def numbers(found: Results) -> list[dict[str, Any]]:
    [table] = measure_tables(found)
    return [dict(zip(MEASURE_HEADINGS, line, strict=True)) for line in table.numbers()]


def test_rise_reset_and_agreement_by_hand(make_record: MakeRecord) -> None:
    found = results(make_record)
    rank, norm = numbers(found)
    # Seed 1 rises in both ranges: 1. Seed 2: ranks 1, 3, 2 give 1/2, and a fall −1: mean −1/4.
    assert (rank["rise_mean"], rank["rise_std"]) == pytest.approx((0.375, 1.25 / 2**0.5))
    # It falls from .5 to .31 in seed 1, and rises from .4 to .5 in seed 2.
    counts = [rank[name] for name in ("runs", "falls", "expansions", "runs_that_reset")]
    assert counts == [2, 1, 2, 1]
    first = (0.005 / 0.305 + 0.01 / 0.41) / 3
    second = (1 / 4 + 1 / 9 + 1 / 7) / 3
    assert rank["agreement_mean"] == pytest.approx((first + second) / 2)
    assert rank["agreement_std"] == pytest.approx((second - first) / 2**0.5)
    # It falls at every task of seed 1 and rises at every one of seed 2; both agree by
    # (1.5/4.5 + 1.5/3.5 + 1.5/2.5)/3 = 0.454.
    assert (norm["rise_mean"], norm["falls"], norm["runs_that_reset"]) == (0, 1, 1)
    [(_, results_table), (name, sheet)] = study_sheets(found)
    assert results_table.rows[0][0].text == "ours"
    assert name == "b0i10: measures of ours"
    assert [[cell.text for cell in row] for row in sheet.rows] == [
        ["effective rank", "2", "0.38 ± 0.88", "1 of 2", "1 of 2", "0.09 ± 0.11"],
        ["weight norm", "2", "0.00 ± 1.41", "1 of 2", "1 of 2", "0.45"],
    ]


def test_the_files_of_a_study_have_the_measures(make_record: MakeRecord, tmp_path: Path) -> None:
    write_study(replace(results(make_record).made, directory=tmp_path))
    [rank, norm] = csv.DictReader((tmp_path / "measures.csv").read_text().splitlines())
    assert [line["measure"] for line in (rank, norm)] == ["effective_rank", "weight_norm"]
    assert float(rank["rise_mean"]) == pytest.approx(0.375)
    for name in ("table.md", "summary.md", "table.tex", "report.html"):
        assert "b0i10: measures of ours" in (tmp_path / name).read_text()


def test_the_means_are_scipys_and_numpys(make_record: MakeRecord) -> None:
    for line, values in zip(numbers(results(make_record)), (RANK, NORM), strict=True):
        ranges = np.array(values).reshape(2, 2, 3)
        rises = [
            np.mean([scipy.stats.spearmanr(range(3), one).statistic for one in run])
            for run in ranges
        ]
        apart = (ranges.std(axis=1) / ranges.mean(axis=1)).mean(axis=1)
        expected = (np.mean(rises), np.std(rises, ddof=1), apart.mean())
        own = (line["rise_mean"], line["rise_std"], line["agreement_mean"])
        assert own == pytest.approx(tuple(map(float, expected)))
        assert line["falls"] == int((ranges[:, 0, -1] > ranges[:, 1, 0]).sum())


def test_without_an_expansion_nothing_resets(make_record: MakeRecord) -> None:
    found = results(make_record, ("start", *["compress"] * 5))
    sheet = study_sheets(found)[1][1]
    assert [cell.text for cell in sheet.rows[0]][3:] == ["–", "–", "–"]
    assert numbers(found)[0]["agreement_mean"] == ""


def test_only_a_study_with_measures_has_their_table(make_record: MakeRecord) -> None:
    rows = {"der": [(50, 62, 3)]}
    assert list(measure_tables(made(make_record, rows, figures=["measures"]))) == []
    assert measure_tables(made(make_record, rows, figures=["bars"])) == ()
