import csv
import io
import statistics

import pytest

from grace.record import RunRecord
from grace.studies.groups import Spread
from grace.studies.tables import (
    Column,
    comparison_table,
    format_cell,
    headings,
    to_csv,
    to_latex,
    to_markdown,
)
from synthetic_records import MakeRecord


@pytest.fixture
def records(make_record: MakeRecord) -> list[RunRecord]:
    return [
        make_record("grace", 1),
        make_record("grace", 2),
        make_record("finetune", 1),
        make_record("joint", 1, evaluated=[5]),
        make_record("der", 1, done=3, status="failed"),
    ]


def test_cells_are_rounded_only_for_display() -> None:
    percent = Column("last", "Last", lambda record: record.last, "%")
    count = Column("backbones", "Backbones", lambda record: 1.0, digits=0)
    millions = Column("parameters", "Parameters", lambda record: 1.0, "M", scale=1e6)
    assert format_cell(Spread(57.386, None, 1), percent) == "57.39"
    assert format_cell(Spread(57.386, 0.4051, 3), percent) == "57.39 ± 0.41"
    assert format_cell(Spread(4.0, 0.0, 3), count) == "4"
    assert format_cell(Spread(11 / 3, 0.577, 3), count) == "3.7 ± 0.6"
    assert format_cell(Spread(4_635_040, None, 1), millions) == "4.64"
    assert format_cell(None, percent) == "–"


def test_csv_holds_unrounded_means_and_deviations(records: list[RunRecord]) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(comparison_table(records)))))
    by_method = {row["method"]: row for row in rows}
    lasts = [record.last for record in records[:2]]
    assert all(value is not None for value in lasts)
    known = [value for value in lasts if value is not None]
    assert float(by_method["grace"]["last_mean"]) == statistics.mean(known)
    assert float(by_method["grace"]["last_std"]) == pytest.approx(statistics.stdev(known))
    assert by_method["finetune"]["last_std"] == ""
    assert by_method["finetune"]["last_nearest_mean_mean"] == ""
    assert by_method["joint"]["average_mean"] == by_method["joint"]["forgetting_mean"] == ""
    assert float(by_method["joint"]["last_mean"]) == records[3].last
    # One backbone of 269,000 and a head of 10 × (64 + 1), 4 bytes each.
    assert float(by_method["finetune"]["parameters_backbones_mean"]) == 269_000
    assert float(by_method["finetune"]["parameters_mean"]) == 269_650
    assert float(by_method["finetune"]["bytes_weights_mean"]) == 4 * 269_650
    assert (by_method["der"]["runs"], by_method["der"]["last_mean"]) == ("0", "")


def test_markdown(records: list[RunRecord]) -> None:
    lines = to_markdown(comparison_table(records)).splitlines()
    assert lines[0].startswith("| Experiment | Method | Runs | Last (%) | Avg (%) |")
    assert len({line.count("|") for line in lines[:6]}) == 1
    assert "±" in next(line for line in lines if "grace" in line)
    assert lines[-1] == "digits/der: 1 of 1 runs unfinished and left out"


def test_names_are_escaped(make_record: MakeRecord) -> None:
    odd = "data.classes=['a|b', 'c_d%']"
    records = [make_record("der", 1, overrides=[odd]), make_record("der", 2)]
    table = comparison_table(records)
    assert r"classes=\['a\|b', 'c\_d%'\]" in to_markdown(table)
    latex = to_latex(table)
    assert r"c\_d\%" in latex
    body = [line for line in latex.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in body} == {len(headings(table)) - 1}
    assert r"$\pm$" in to_latex(comparison_table([make_record("grace", s) for s in (1, 2)]))
