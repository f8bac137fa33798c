"""Tables of studies and comparisons: texts by hand, exact numbers as CSV, LaTeX."""

import csv
import io
import math
import statistics
from dataclasses import replace

import pytest

from grace.base.words import latex
from grace.runs.model import RunRecord
from grace.studies.frame import METRICS, frame, frame_of, numbers_of
from grace.studies.results import REPLAYED, compared
from grace.studies.table import numbers_csv, study_tables
from support.synthetic_records import MakeRecord
from support.synthetic_studies import made

THREE = {
    "grace": [(60, 70, 3), (62, 71, 2), (61, 72, 3)],
    "der": [(59, 69, 5), (61.5, 70.2, 5), (59.5, 71.1, 5)],
}


def test_cells_are_rounded_only_for_display() -> None:
    percent, count = METRICS["last"], METRICS["backbones"]
    assert percent.shown(57.386) == "57.39"
    assert percent.shown(57.386, 0.4051) == "57.39 ± 0.41"
    assert percent.shown(float("nan")) == "–"
    assert count.shown(4.0, 0.0) == "4"
    assert count.shown(11 / 3, 0.577) == "3.7 ± 0.6"


def test_the_table_marks_the_best_and_ends_with_the_lead(make_record: MakeRecord) -> None:
    results = made(
        make_record,
        THREE | {"foster": []},
        rows={name: {"method": "der", "set": [f"memory.size={n}"]} for n, name in
              enumerate(("grace", "der", "foster"))},
        columns=["backbones", "last"],
        paper="table-1",
        delta="grace",
        delta_against="der",
    )  # fmt: skip
    [table] = study_tables(results)
    assert table.headings == ("Row", "Runs", "Backbones", "paper", "Last (%)", "paper")
    assert table.rows == [
        ["grace", "3", "2.7 ± 0.6", "5", "61.00 ± 1.00", "60.80"],
        ["der", "3", "5", "10", "60.00 ± 1.32", "60.47"],
        ["foster", "0", "–", "1", "–", "54.15"],
        ["Δ", "", "-47 %", "", "+1.00", ""],
    ]
    assert table.marks == {(0, 4): "best", (1, 4): "second"}
    assert "not all runs are finished: foster" in table.notes
    assert table.notes[1].startswith("paper: printed numbers of Table 1, cifar100 b0i10, of other")
    assert r"\textbf{61.00 $\pm$ 1.00}" in table.to_latex()
    [_, last] = csv.DictReader(io.StringIO(numbers_csv(results)).readlines()[:3])
    assert (last["protocol"], last["row"], last["metric"]) == ("b0i10", "grace", "last")
    assert [float(last[key]) for key in ("mean", "std", "runs", "paper")] == [61, 1, 3, 60.8]


def test_less_forgetting_is_better(make_record: MakeRecord) -> None:
    """With two tasks, forgetting is the first task's fall: that of the records is the same."""
    results = made(
        make_record,
        {"grace": THREE["grace"], "der": THREE["der"]},
        rows={"grace": {"method": "grace"}, "der": {"method": "der"}},
        columns=["forgetting"],
    )
    assert set(study_tables(results)[0].marks.values()) == {"best"}  # Equal values share a mark.


def test_replayed_rows_are_named(make_record: MakeRecord) -> None:
    grid = {"method.threshold": [0.4, 0.5, 0.6], "method.threshold_decay": [0.9]}
    numbers = {f"{value}/0.9": [(60, 70, 4)] * 3 for value in (0.4, 0.5, 0.6)}
    replayed = [("0.6/0.9", 1), ("0.6/0.9", 2), ("0.6/0.9", 3), ("0.5/0.9", 1), ("0.5/0.9", 2)]
    rows = {"pairs": {"method": "grace", "grid": grid}}
    [table] = study_tables(made(make_record, numbers, replayed, rows=rows))
    names = [row[0] for row in table.rows]
    assert names == ["0.4/0.9", "0.5/0.9 (2 of 3 replayed)", "0.6/0.9 (replayed)"]
    assert table.notes == [REPLAYED]


@pytest.fixture
def records(make_record: MakeRecord) -> list[RunRecord]:
    return [
        *(make_record("grace", seed) for seed in (1, 2)),
        make_record("grace", 3, done=3, status="failed"),
        make_record("finetune", 1),
        make_record("joint", 1, evaluated=[5]),
        make_record("der", 1, task_aware=False),
    ]


def test_a_report_holds_unrounded_means_over_complete_runs(records: list[RunRecord]) -> None:
    result = compared(records)
    known = [value for record in records[:2] if (value := record.last) is not None]
    means, deviations = result.means.loc["digits"], result.deviations.loc["digits"]
    assert means.at["grace", "last"] == pytest.approx(statistics.mean(known))
    assert deviations.at["grace", "last"] == pytest.approx(statistics.stdev(known))
    assert math.isnan(deviations.at["finetune", "last"])
    assert math.isnan(means.at["joint", "average"])
    assert means.at["joint", "last"] == records[4].last
    # One backbone of 269,000.
    assert means.at["finetune", "parameters"] == 0.269
    [table] = study_tables(result)
    assert table.headings[:4] == ("Row", "Runs", "Last (%)", "Avg (%)")
    assert "TA Last (%)" in table.headings  # Only where a run has it.
    assert "TA Last (%)" not in study_tables(compared(records[5:]))[0].headings
    assert [row[:2] for row in table.rows if row[0] == "grace"] == [["grace", "2"]]
    assert table.notes == ["not all runs are finished: grace"]
    assert len(result.records) == len(records)  # Figures show all of them.


def test_names_are_escaped(make_record: MakeRecord) -> None:
    odd = "data.classes=['a|b', 'c_d%']"
    records = [make_record("der", 1, overrides=[odd]), make_record("der", 2)]
    [table] = study_tables(compared(records))
    text = table.to_latex()
    assert r"c\_d\%" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in body} == {len(table.headings) - 1}


def test_latex_knows_every_character_and_keeps_hyphens() -> None:
    assert latex("Δ --L ----held -1 –") == r"$\Delta$ -{}-L -{}-{}-{}-held -1 --"
    assert latex("") == ""


def test_a_frame_has_a_line_per_run_and_task(records: list[RunRecord]) -> None:
    found = frame(records[0].directory.parent)
    assert len(found) == 5 * 5 + 3
    assert set(found["method"]) == {"grace", "finetune", "joint", "der"}
    [last] = found[(found.method == "grace") & (found.seed == 1) & (found.task == 5)].to_dict(
        "records"
    )
    task = records[0].tasks[-1]
    assert (last["accuracy"], last["verdict"]) == (records[0].last, task.verdict)
    assert (last["backbones"], last["parameters"]) == (task.backbones, task.parameters.total)
    assert frame_of([]).empty
    # A record that claims to be finished after no task has no numbers.
    empty = replace(records[0], tasks=())
    assert numbers_of([empty, None]).isna().all(axis=None)
