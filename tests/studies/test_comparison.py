"""A whole comparison, in processes of its own, and what it leaves."""

import csv
import io
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grace.base.errors import BusyError, GraceError
from grace.base.lock import exclusive
from grace.runs.run import run_experiment
from grace.settings.load import load_experiment
from grace.studies.cells import Cell, cells_of, settings_of
from grace.studies.comparison import Comparison, compare
from grace.studies.summary import shared_seconds, summarise
from support.interruptions import call_number, interrupted
from support.runs_here import carry_out_here, left_by_killed
from support.synthetic_records import MakeRecord

QUICK = [
    "data.max_train_per_class=8",
    "data.max_test_per_class=5",
    "scenario.increment=5",
    "memory.size=20",
    "methods.replay.base.epochs=2",
    "methods.wa.base.epochs=2",
    "methods.replay.update.epochs=1",
    "methods.wa.update.epochs=20",  # Long enough to be interrupted in it.
]


class Notes:
    """What was told."""

    def __init__(self) -> None:
        self.planned_runs: list[tuple[int, int]] = []
        self.ended: list[tuple[str, str | None]] = []

    def planned(self, num_left: int, at_once: int) -> None:
        self.planned_runs.append((num_left, at_once))

    def cell_started(self, cell: Cell) -> None: ...

    def cell_progressed(self, cell: Cell, num_tasks: int) -> None: ...

    def cell_ended(self, cell: Cell, failure: str | None) -> None:
        self.ended.append((cell.name, failure))


def cells(*methods: str, more: tuple[str, ...] = ()) -> list[Cell]:
    return cells_of("digits", [*QUICK, *more], methods, [4])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Comparison, Notes]:
    """Two methods with one seed."""
    directory, notes = tmp_path_factory.mktemp("comparison") / "there", Notes()
    result = compare(cells("wa", "replay"), directory, notes, at_once=2, command="as typed")
    return directory, result, notes


@pytest.fixture
def stay_here(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Spare, from when it is called, the processes: each imports torch, which takes seconds."""
    return lambda: monkeypatch.setattr("grace.studies.comparison.carry_out", carry_out_here)


@pytest.fixture
def copied(whole: tuple[Path, Comparison, Notes], tmp_path: Path) -> Path:
    """The same comparison, to be changed."""
    shutil.copytree(whole[0], tmp_path / "copy")
    return tmp_path / "copy"


def test_every_cell_is_the_run_that_it_would_be_alone(
    whole: tuple[Path, Comparison, Notes], tmp_path: Path
) -> None:
    directory, result, notes = whole
    assert result.failures == {}
    assert [record.method for record in result.records] == ["replay", "wa"]
    assert notes.planned_runs == [(2, 2)]
    assert sorted(notes.ended) == [("replay-s4", None), ("wa-s4", None)]
    chosen = cells("replay", "wa")
    for cell, record in zip(chosen, result.records, strict=True):
        assert record.directory == directory / "runs" / cell.name
    # Of the two, the one whose first task was trained by the other.
    (taker,) = (n for n, own in enumerate(result.records) if own.tasks[0].phases[0].is_shared)
    record = result.records[taker]
    alone = run_experiment(chosen[taker].settings, tmp_path / "alone")
    assert [t.classifiers for t in record.tasks] == [t.classifiers for t in alone.tasks]
    assert [t.confusion for t in record.tasks] == [t.confusion for t in alone.tasks]


def test_the_first_task_was_trained_once(whole: tuple[Path, Comparison, Notes]) -> None:
    directory, result, _ = whole
    replay, wa = (record.tasks[0].phases[0] for record in result.records)
    # Which of the two trained it depends on the machine; the other one waited for it.
    assert sorted([wa.earlier > 0, replay.earlier > 0]) == [False, True]
    assert shared_seconds(result.records) == max(wa.earlier, replay.earlier)
    assert len(list((directory / "first-tasks").rglob("*.safetensors"))) == 1


def test_every_cell_says_how_many_threads_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What its process is given is looked at, not what it would do.
    idle = [sys.executable, "-S", "-c", ""]
    monkeypatch.setattr("grace.studies.making.run_command", lambda *given: idle)
    given = cells("replay", more=("engine.threads=null",))
    compare(given, tmp_path / "there", Notes(), at_once=1)
    written = load_experiment(str(tmp_path / "there" / "cells" / "replay-s4.yaml"))
    assert written.engine.threads == 1
    assert written.model_copy(update={"engine": given[0].settings.engine}) == given[0].settings


def test_what_is_written(whole: tuple[Path, Comparison, Notes]) -> None:
    directory, result, _ = whole
    names = ["report.html", "summary.md", "table.csv", "table.md", "table.tex"]
    assert sorted(path.name for path in result.files) == names
    rows = list(csv.DictReader(io.StringIO((directory / "table.csv").read_text())))
    assert [row["method"] for row in rows] == ["wa", "replay"]
    for row, record in zip(rows, result.records[::-1], strict=True):
        assert float(row["last_mean"]) == record.last
    summary = (directory / "summary.md").read_text()
    assert "as typed" in summary
    assert "Sharing the first task's network spared" in summary
    assert f"| wa | {result.records[1].accuracies()[0]:.1f} |" in summary
    assert "wa" in (directory / "report.html").read_text()


def test_what_is_finished_is_not_done_again(copied: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in copied.glob("runs/*/*")}
    left_by_killed(next(copied.glob("runs/*")))
    notes = Notes()
    result = compare(cells("wa", "replay"), copied, notes, at_once=1)
    assert notes.planned_runs == [(0, 1)]
    assert len(result.records) == 2
    assert {path: path.stat().st_mtime_ns for path in copied.glob("runs/*/*")} == before


def unfinished(place: Path) -> None:
    """Leave a run as one that was killed in its first task."""
    (place / "tasks.jsonl").unlink()
    text = (place / "run.json").read_text()
    (place / "run.json").write_text(text.replace('"finished"', '"running"', 1))


def test_a_failed_cell_is_told_and_begun_again(
    whole: tuple[Path, Comparison, Notes], copied: Path, stay_here: Callable[[], None]
) -> None:
    """Somebody holds one run: its cell fails, the rest is reported on."""
    stay_here()
    place = copied / "runs" / "wa-s4"
    unfinished(place)
    with exclusive(place / "lock", "the run"):
        result = compare(cells("wa", "replay"), copied, Notes(), at_once=1)
    assert list(result.failures) == ["wa-s4"]
    assert f"pid {os.getpid()}" in result.failures["wa-s4"]
    assert [record.method for record in result.records] == ["replay"]

    again = compare(cells("wa", "replay"), copied, Notes(), at_once=1)
    assert again.failures == {}
    assert results(again) == results(whole[1])


def results(comparison: Comparison) -> list[Any]:
    """What every run computed, by its method."""
    records = sorted(comparison.records, key=lambda record: record.method)
    return [[(task.classifiers, task.confusion) for task in record.tasks] for record in records]


class Impatient(Notes):
    """Presses Ctrl-C as soon as a run has done its first task.

    Looked for here: between two looks of the comparison a run so small may do all its tasks.
    """

    def __init__(self, tasks: Path) -> None:
        super().__init__()
        self.tasks = tasks

    def cell_started(self, cell: Cell) -> None:
        while not (self.tasks.exists() and b"\n" in self.tasks.read_bytes()):
            time.sleep(0.005)
        raise KeyboardInterrupt


def test_an_interrupted_comparison_goes_on(
    whole: tuple[Path, Comparison, Notes], copied: Path, stay_here: Callable[[], None]
) -> None:
    unfinished(copied / "runs" / "wa-s4")
    impatient = Impatient(copied / "runs" / "wa-s4" / "tasks.jsonl")
    with pytest.raises(KeyboardInterrupt):
        compare(cells("wa", "replay"), copied, impatient, at_once=1)
    # What was finished then stands in the tables already.
    assert "| replay |" in (copied / "summary.md").read_text()
    assert "| wa |" not in (copied / "summary.md").read_text()
    assert (copied / "runs" / "wa-s4" / "checkpoint").is_dir()
    stay_here()
    result = compare(cells("wa", "replay"), copied, Notes(), at_once=1)
    assert results(result) == results(whole[1])
    assert not (copied / "runs" / "wa-s4" / "checkpoint").exists()


def test_a_record_that_lost_a_line_is_learnt_again(
    whole: tuple[Path, Comparison, Notes], copied: Path, stay_here: Callable[[], None]
) -> None:
    stay_here()
    lines = copied / "runs" / "wa-s4" / "tasks.jsonl"
    lines.write_bytes(lines.read_bytes().split(b"\n")[0] + b"\n")
    result = compare(cells("wa", "replay"), copied, Notes(), at_once=1)
    assert results(result) == results(whole[1])


def test_a_damaged_record_is_named_and_left_out(copied: Path) -> None:
    place = copied / "runs" / "wa-s4"
    (place / "run.json").write_text("{")
    for asked in (cells("replay"), cells("replay", "wa")):
        result = compare(asked, copied, Notes())
        assert [record.method for record in result.records] == ["replay"]
        assert list(result.failures) == ["wa-s4"]
        assert "damaged" in result.failures["wa-s4"]
        assert result.failures["wa-s4"].endswith(f": remove {place} to run it again")


def test_the_tables_are_about_all_runs_of_the_directory(copied: Path) -> None:
    result = compare(cells("replay"), copied, Notes(), at_once=1)
    assert [record.method for record in result.records] == ["replay", "wa"]
    assert "| wa |" in (copied / "summary.md").read_text()


@pytest.mark.parametrize("more", ["memory.size=30", "data.split_seed=1"])
def test_another_protocol_is_refused(copied: Path, more: str) -> None:
    # None of its own methods has a run there.
    with pytest.raises(ValueError, match="holds a run with other data, backbone or memory"):
        compare(cells("der", more=(more,)), copied, Notes())


def test_a_method_with_a_backbone_of_its_own_can_be_added(
    copied: Path, stay_here: Callable[[], None]
) -> None:
    stay_here()
    own = [*QUICK, "methods.wa.backbone.name=resnet32", "methods.wa.update.epochs=1"]

    def added(method: str) -> Comparison:
        beside = cells_of("digits", own, [method], [4])
        with pytest.raises(GraceError, match="other data, backbone") as caught:
            compare(beside, copied, Notes(), settings_of=partial(settings_of, "digits", QUICK[1:]))
        assert f"{'replay' if method == 'wa' else 'wa'}-s4 holds" in caught.value.what
        known = partial(settings_of, "digits", own)
        return compare(beside, copied, Notes(), at_once=1, settings_of=known)

    shutil.rmtree(copied / "runs" / "wa-s4")
    methods = {record.method for record in added("wa").records}
    assert methods == {"wa", "replay"}
    told = "- backbones: resnet20, conv7 (replay); resnet32, conv7 (wa)\n"
    assert told in (copied / "summary.md").read_text()
    # The other way round, beside the run that has the larger one.
    shutil.rmtree(copied / "runs" / "replay-s4")
    assert {record.method for record in added("replay").records} == methods
    assert told in (copied / "summary.md").read_text()


def test_other_settings_of_a_run_are_refused(copied: Path) -> None:
    with pytest.raises(ValueError, match="holds a run with other settings, data or versions"):
        compare(cells("wa", more=("methods.wa.temperature=3",)), copied, Notes())


def test_another_precision_is_another_run(copied: Path) -> None:
    with pytest.raises(ValueError, match="holds a run with other settings, data or versions"):
        compare(cells("wa", more=("engine.precision=bfloat16",)), copied, Notes())


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(
        ValueError, match="holds files that are not of a comparison: choose another directory"
    ):
        compare(cells("wa"), tmp_path, Notes())
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_published_records_are_gone_on_with(copied: Path, tmp_path: Path) -> None:
    """An archive of results holds run.json and tasks.jsonl of every run, and nothing else."""
    published = tmp_path / "published"
    for place in (copied / "runs").iterdir():
        (published / "runs" / place.name).mkdir(parents=True)
        for name in ("run.json", "tasks.jsonl"):
            shutil.copy(place / name, published / "runs" / place.name)
    notes = Notes()
    result = compare(cells("wa", "replay"), published, notes, at_once=1)
    assert notes.planned_runs == [(0, 1)]
    assert len(result.records) == 2
    assert (published / "table.md").exists()


@pytest.mark.parametrize("foreign", ["notes.txt", "runs/notes.txt", "runs/mine/photo.jpg"])
def test_records_beside_something_else_are_left_alone(
    copied: Path, tmp_path: Path, foreign: str
) -> None:
    shutil.copytree(copied / "runs", tmp_path / "other" / "runs")
    file = tmp_path / "other" / foreign
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(GraceError, match="holds files that are not of a comparison"):
        compare(cells("wa"), tmp_path / "other", Notes())
    assert file.read_text() == "mine"


def test_only_one_process_compares(copied: Path) -> None:
    with exclusive(copied / "lock", "it"), pytest.raises(BusyError, match="being changed by"):
        compare(cells("wa"), copied, Notes())


def test_what_no_run_could_use_is_refused_before_any_starts(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"scenario\.base"):
        compare(cells("wa", more=("scenario.base=11",)), tmp_path / "new", Notes())
    with pytest.raises(ValueError, match=r"memory.size"):
        compare(cells("wa", more=("memory.size=3",)), tmp_path / "new", Notes())
    assert not (tmp_path / "new").exists()


def test_summary_by_hand(make_record: MakeRecord) -> None:
    records = [make_record(method, seed) for method in ("der", "replay") for seed in (1, 2)]
    text = summarise(records, "grace compare x")
    # Every synthetic task takes 1.75 s: four runs of five tasks.
    assert "4 runs, 35.0 s of work" in text
    means = [
        sum(record.accuracies()[0] or 0 for record in records[:2]) / 2,
        sum(record.accuracies()[4] or 0 for record in records[:2]) / 2,
    ]
    untold = text.partition("## Task-aware")[0]
    (line,) = [row for row in untold.split("\n") if row.startswith("| der | ")]
    shown = line.split(" | ")
    assert (shown[1], shown[5]) == (f"{means[0]:.1f}", f"{means[1]:.1f}")


def test_the_summary_keeps_task_aware_accuracies_apart(make_record: MakeRecord) -> None:
    records = [make_record("der", 1), make_record("replay", 1)]
    before, title, after = summarise(records).partition("## Task-aware accuracy after each task")
    assert title
    values = [f"{value:.1f}" for value in records[0].task_aware_accuracies()]
    (line,) = [row for row in after.split("\n") if row.startswith("| der | ")]
    assert line == f"| der | {' | '.join(values)} |"
    assert "| Method | Task 1 | Task 2 | Task 3 | Task 4 | Task 5 |\n" in after
    assert "| Method | Task 1 | Task 2 | Task 3 | Task 4 | Task 5 | Old | New |\n" in before
    assert "ask-aware" not in summarise([make_record("wa", task_aware=False)])


def test_what_one_should_know_is_said_once(make_record: MakeRecord) -> None:
    records = [make_record("ewc", 1), make_record("ewc", 2), make_record("der", 1)]
    told = [replace(r, info=r.info.model_copy(update={"notes": ("mind this",)})) for r in records]
    text = summarise(told)
    assert text.count("mind this") == 1
    assert text.index("mind this") < text.index("## Results")


def test_a_comparison_that_was_killed_as_it_began_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between its folders it was refused as another's; a file beside its cells stayed."""
    monkeypatch.setattr("grace.studies.comparison.carry_out", lambda *_, **__: None)
    place, watcher, second = tmp_path / "there", Notes(), call_number(2)
    with interrupted(Path, "mkdir", lambda path, **_: path.parent == place and second()):
        compare(cells("wa"), place, watcher)
    left = place / f".grace-unfinished-{'0' * 32}"
    (place / "cells").mkdir()
    for path in (left, place / "cells" / left.name):
        path.write_bytes(b"half")
    assert compare(cells("wa"), place, watcher).records == ()
    assert not list(place.rglob(left.name))
