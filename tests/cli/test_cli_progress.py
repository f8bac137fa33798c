"""What people see of work that takes long: a bar on a terminal, elsewhere a line at times."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, final

import pytest
from rich.console import Console

from grace.cli.progress import RichProgress, StudyProgress
from grace.cli.run import print_summary
from grace.runs.model import TaskRecord
from grace.runs.run import RunProgress
from support.synthetic_records import MakeRecord

PLAN = {"grow": 60.0, "compress": 40.0, "fuse": 20.0}


@final
class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@final
class Screen:
    """What progress shows: ``text`` on a terminal, or a table and notes."""

    def __init__(self, *, is_terminal: bool = False, every: float = 1000) -> None:
        self.table, self.notes, self.time = io.StringIO(), io.StringIO(), Time()
        table = Console(
            file=self.table, force_terminal=is_terminal, width=120, legacy_windows=False
        )
        notes = Console(file=self.notes)
        self.progress = RichProgress(table, notes, seconds_between_notes=every, now=self.time)

    def epoch(self, name: str, epoch: int, epochs: int, seconds: float) -> None:
        self.time.seconds += seconds
        self.progress.epoch_finished(name, epoch, epochs, {"classification": 0.5}, 0.1)

    @property
    def rows(self) -> list[str]:
        return self.table.getvalue().splitlines()

    @property
    def last_note(self) -> str:
        return self.notes.getvalue().splitlines()[-1]


def feed(progress: RunProgress, tasks: Sequence[TaskRecord], epochs: int = 3) -> None:
    with progress:
        for task in tasks:
            progress.task_started(task.task, len(tasks), task.class_names_new)
            progress.phase_started("grow", epochs, 300)
            for epoch in range(1, epochs + 1):
                progress.epoch_finished("grow", epoch, epochs, {"classification": 1 / epoch}, 0.1)
            progress.phase_finished("grow", 1.5)
            progress.sweep_started("saturation", 300)
            progress.task_finished(task)


def test_lines_of_an_update_tell_the_time_left() -> None:
    screen = Screen(every=0)
    progress = screen.progress
    progress.update_started(["ant"])
    progress.update_planned({"grow": 60.0, "compress": 40.0})
    for name, epochs in (("grow", 3), ("compress", 2)):
        progress.phase_started(name, epochs, 300)
        for epoch in range(1, epochs + 1):
            screen.epoch(name, epoch, epochs, 40)
        progress.phase_finished(name, 40 * epochs)
    loss = "classification 0.500  lr 0.1"
    assert screen.notes.getvalue().splitlines() == [
        "update: 1 new class (ant)",
        "update: grow, 3 epochs over 300 images",
        f"update: grow epoch 1/3  {loss}  about 2:40 min left",  # 80 passes at 2 s
        f"update: grow epoch 2/3  {loss}  about 2:00 min left",
        f"update: grow epoch 3/3  {loss}  about 80.0 s left",
        "update: compress, 2 epochs over 300 images  about 80.0 s left",
        f"update: compress epoch 1/2  {loss}  about 40.0 s left",
        f"update: compress epoch 2/2  {loss}",
    ]


def test_an_update_that_goes_on_counts_what_it_trains_itself() -> None:
    screen = Screen(every=0)
    progress = screen.progress
    progress.update_started([])
    progress.update_planned(PLAN)
    progress.phase_started("grow", 3, 10)
    progress.phase_finished("grow", 9)  # Read from disk: no epoch.
    progress.phase_started("compress", 4, 10)
    assert "left" not in screen.last_note
    screen.epoch("compress", 3, 4, 6)  # From a snapshot of two epochs.
    assert screen.last_note.endswith("about 18.0 s left")  # 10 passes took 6 s, and 30 are left.
    for _ in range(2):  # Two phases that take turns count once.
        screen.epoch("compress", 4, 4, 3)
    assert screen.last_note.endswith("about 12.0 s left")
    for name in ("head", "fuse"):  # Not planned, as it takes no time; the last one.
        progress.phase_started(name, 5, 10)
        assert screen.last_note.endswith("about 12.0 s left")
    screen.epoch("fuse", 2, 4, 3)  # 25 passes took 15 s, and 10 are left.
    assert screen.last_note.endswith("about 6.0 s left")


def test_a_run_tells_the_time_left_without_its_first_task(make_record: MakeRecord) -> None:
    screen = Screen()
    for task in make_record("grace", 1).tasks[:3]:
        screen.progress.task_started(task.task, 5, task.class_names_new)
        screen.time.seconds += 90 if task.task == 1 else 10
        screen.progress.task_finished(task)
    screen.progress.waiting("reading")  # Not important.
    screen.progress.task_started(4, 5, [])
    assert screen.notes.getvalue().splitlines()[1:] == [
        "task 2/5: 2 new classes (class 2, class 3)",
        "task 3/5: 2 new classes (class 4, class 5)  about 30.0 s left",
        "task 4/5: no new class  about 20.0 s left",
    ]


def test_lines_elsewhere_and_a_bar_on_a_terminal(make_record: MakeRecord) -> None:
    tasks = make_record("grace", 1).tasks
    seldom, often, bar = Screen(), Screen(every=0), Screen(is_terminal=True)
    for screen in (seldom, often, bar):
        feed(screen.progress, tasks)
    assert len(seldom.rows) == 2 + 5
    assert "\x1b" not in seldom.table.getvalue() + often.notes.getvalue()
    # Occasional: two lines per task, no line per epoch.
    assert len(seldom.notes.getvalue().splitlines()) == 10
    assert "grow epoch 2/3  classification 0.500  lr 0.1" in often.notes.getvalue()
    assert not any(line.endswith(" ") for line in often.notes.getvalue().splitlines())
    assert "\x1b[" in bar.table.getvalue()
    assert "task 5/5: saturation of 300 images" in bar.table.getvalue()
    assert bar.notes.getvalue() == ""
    assert all(f"{task.classifiers['linear'].all:.1f}" in bar.table.getvalue() for task in tasks)


def test_columns_of_the_table(make_record: MakeRecord) -> None:
    def rows(**more: Any) -> list[list[str]]:
        screen = Screen()
        feed(screen.progress, make_record(**more).tasks)
        assert {len(row) for row in screen.rows} == {80}
        return [row.split() for row in screen.rows[2:]]

    verdicts = ["start", "grow", *["compress (budget)"] * 3]
    shown = [row[5] for row in rows(method="grace", verdicts=verdicts)]
    assert shown == ["start", "grow", "budget", "budget", "budget"]
    assert [row[5] for row in rows(method="finetune")] == ["–"] * 5
    assert [row[1] == "–" for row in rows(method="joint", evaluated=[5])] == [True] * 4 + [False]


def test_summary_says_what_is_unknown(
    make_record: MakeRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    record = make_record("joint", evaluated=[5])
    print_summary(record, None)
    out = capsys.readouterr().out
    assert f"Last {record.last:.2f} %   Avg –   forgetting –" in out
    assert "report" not in out


def test_a_line_for_every_run_of_a_study_that_ends(capsys: pytest.CaptureFixture[str]) -> None:
    now = Time()
    with StudyProgress(now) as progress:
        progress.planned(3, 1)
        progress.started("der s1", Path("runs/a"))
        now.seconds += 30
        progress.ended("der s1", None, 1)
        progress.started("wa s1", Path("runs/b"))
        progress.ended("wa s1", "no \x1b[31m room", 0)
    assert capsys.readouterr().err.splitlines() == [
        "3 runs to make, 1 at a time",
        "1/2  der s1  done in 30.0 s, about 30.0 s left",
        "2/2  wa s1  failed: no \\x1b[31m room",
    ]
