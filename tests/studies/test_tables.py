import csv
import io
import statistics
from dataclasses import replace

import pytest

from grace.base.words import latex
from grace.runs import RunRecord, TaskAwareRecord
from grace.studies.groups import Spread
from grace.studies.tables import (
    Column,
    comparison_table,
    display_rows,
    format_cell,
    headings,
    to_csv,
    to_latex,
    to_markdown,
)
from support.synthetic_records import MakeRecord


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
    text = to_latex(table)
    assert r"c\_d\%" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in body} == {len(headings(table)) - 1}
    assert r"$\pm$" in to_latex(comparison_table([make_record("grace", s) for s in (1, 2)]))


def test_task_aware_numbers_have_columns_of_their_own(make_record: MakeRecord) -> None:
    """R of the task-aware accuracies is set by hand: two tasks, two runs."""
    old = make_record("der", 1, task_aware=False)
    assert not any("TA" in heading for heading in headings(comparison_table([old])))
    told = [
        with_task_aware(make_record("finetune", seed, task_sizes=(2, 2)), rows)
        for seed, rows in ((1, [[90.0], [70.0, 100.0]]), (2, [[100.0], [60.0, 80.0]]))
    ]
    table = comparison_table([old, *told])
    titles = headings(table)
    assert titles[3:11] == [
        "Last (%)", "Avg (%)", "Forgetting (points)", "BWT (points)", "Last NME (%)",
        "TA Last (%)", "TA Avg (%)", "TA Forgetting (points)",
    ]  # fmt: skip
    shown = {row[1]: row[8:11] for row in display_rows(table)}
    assert shown["der"] == ["–", "–", "–"]
    # Last 85 and 70; Avg 87.5 and 85; forgetting 20 and 40. Two values deviate by |a − b| / √2.
    assert shown["finetune"] == ["77.50 ± 10.61", "86.25 ± 1.77", "30.00 ± 14.14"]
    row = list(csv.DictReader(io.StringIO(to_csv(table))))[1]
    assert [float(row[f"task_aware_{key}_mean"]) for key in ("last", "average", "forgetting")] == [
        77.5,
        86.25,
        30.0,
    ]
    assert "| TA Last (%) | TA Avg (%) | TA Forgetting (points) |" in to_markdown(table)
    assert r"& TA Last (\%) & TA Avg (\%) & TA Forgetting (points) &" in to_latex(table)


def with_task_aware(record: RunRecord, rows: list[list[float]]) -> RunRecord:
    """The same record with other task-aware accuracies; all tasks have as many images."""
    tasks = []
    for task, row in zip(record.tasks, rows, strict=True):
        told = TaskAwareRecord(all=statistics.mean(row), per_task=tuple(row))
        linear = task.classifiers["linear"].model_copy(update={"task_aware": told})
        tasks.append(task.model_copy(update={"classifiers": {"linear": linear}}))
    return replace(record, tasks=tuple(tasks))


def test_tasks_that_leave_no_choice_are_flagged(make_record: MakeRecord) -> None:
    stream = {"task_sizes": (3, 1, 1)}
    note = "tasks 2, 3 have one class, so that task-aware (TA) accuracy there is 100 % by"
    records = [make_record(method, **stream) for method in ("der", "replay")]
    (told,) = comparison_table(records).notes
    assert told == f"digits: {note} construction"
    assert note in to_markdown(comparison_table(records))
    assert f"% digits: {note}" in to_latex(comparison_table(records))
    assert comparison_table([make_record("wa", task_aware=False, **stream)]).notes == ()
    assert comparison_table([make_record("wa", 2)]).notes == ()
    # Rows of other streams: each is named.
    mixed = [*records, make_record("ewc"), make_record("icarl", task_sizes=(2, 1, 1, 1, 3))]
    assert [note.partition(" one class")[0] for note in comparison_table(mixed).notes] == [
        "digits/der: tasks 2, 3 have",
        "digits/icarl: tasks 2 to 4 have",
        "digits/replay: tasks 2, 3 have",
    ]


def test_latex_knows_every_character_and_keeps_hyphens() -> None:
    assert latex("Δ --L ----held -1 –") == r"$\Delta$ -{}-L -{}-{}-{}-held -1 --"
    assert latex("") == ""
