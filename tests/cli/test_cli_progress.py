import io
from collections.abc import Sequence
from functools import partial
from typing import final

import pytest
from rich.console import Console

from grace.cli import progress as progress_module
from grace.cli.progress import RichProgress, RunClock, UpdateClock, in_clock
from grace.cli.run import print_summary
from grace.runs import RunProgress, TaskRecord
from support.synthetic_records import MakeRecord


def feed(progress: RunProgress, tasks: Sequence[TaskRecord], epochs: int = 3) -> None:
    for task in tasks:
        progress.task_started(task.task, len(tasks), task.class_names_new)
        progress.phase_started("grow", epochs, 300)
        for epoch in range(1, epochs + 1):
            progress.epoch_finished("grow", epoch, epochs, {"classification": 1 / epoch}, 0.1)
        progress.phase_finished("grow", 1.5)
        progress.sweep_started("saturation", 300)
        progress.task_finished(task)


def test_clock_guesses_from_later_tasks() -> None:
    times = iter([0.0, 30.0, 30.0, 40.0, 40.0, 46.0, 50.0, 50.0, 61.0])
    clock = RunClock(lambda: next(times))
    assert clock.seconds_left() is None
    clock.task_started(4)
    clock.task_finished()  # 30 s; nothing else is known: 3 × 30
    assert clock.seconds_left() == pytest.approx(90)
    clock.task_started(4)
    clock.task_finished()  # 10 s: the first no longer counts: 2 × 10
    assert clock.seconds_left() == pytest.approx(20)
    clock.task_started(4)
    assert clock.seconds_left() == pytest.approx(14)  # 6 s into the third
    clock.task_finished()
    clock.task_started(4)
    assert clock.seconds_left() is None, "the last task takes longer than those before it"


@final
class Time:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


PLAN = {"grow": 60.0, "compress": 40.0}


def test_an_update_goes_on_as_fast_as_it_went() -> None:
    time = Time()
    clock = UpdateClock(PLAN, time)
    clock.phase_started("grow")
    time.seconds += 5
    assert clock.seconds_left() is None, "no epoch is over"
    time.seconds += 5
    clock.epoch_finished(1, 3)
    # 20 of 100 passes took 10 s: the other 80 take 40 s.
    assert clock.seconds_left() == pytest.approx(40)
    assert clock.share_done == pytest.approx(0.2)
    time.seconds += 30  # The machine is busy.
    clock.epoch_finished(2, 3)
    assert clock.seconds_left() == pytest.approx(40 / 40 * 60)
    time.seconds += 20
    clock.epoch_finished(3, 3)
    clock.phase_finished()
    assert clock.seconds_left() == pytest.approx(60 / 60 * 40)
    clock.phase_started("compress")
    time.seconds += 20
    clock.epoch_finished(1, 2)
    # 80 passes took 80 s.
    assert clock.seconds_left() == pytest.approx(20)
    clock.epoch_finished(2, 2)
    assert clock.seconds_left() is None, "nothing of the plan is left"
    assert clock.share_done == pytest.approx(1)


def test_an_update_that_goes_on_counts_what_it_trains_itself() -> None:
    time = Time()
    clock = UpdateClock(PLAN, time)
    clock.phase_started("grow")
    clock.phase_finished()  # Read from disk: no epoch.
    assert clock.share_done == pytest.approx(0.6)
    assert clock.seconds_left() is None
    clock.phase_started("compress")
    time.seconds += 6
    clock.epoch_finished(3, 4)  # From a snapshot of two epochs.
    # 10 passes took 6 s, and 10 are left.
    assert clock.seconds_left() == pytest.approx(6)


def test_a_phase_that_is_left_out_takes_no_time_and_turns_count_once() -> None:
    time = Time()
    clock = UpdateClock({"grow": 60.0, "compress": 40.0, "fuse": 20.0}, time)
    clock.phase_started("grow")
    time.seconds += 12
    for _ in range(2):  # Two phases that take turns.
        clock.epoch_finished(1, 1)
    assert clock.seconds_left() == pytest.approx(12)
    assert (clock.plans("fuse"), clock.plans("herd")) == (True, False)
    clock.phase_started("fuse")
    assert clock.seconds_left() == pytest.approx(4)
    clock.phase_started("head")  # Not planned, as it takes no time.
    clock.epoch_finished(1, 5)
    assert clock.seconds_left() is None


def updated(console: Console, time: Time, **options: float) -> None:
    """Show an update of two phases, of 60 and 40 passes, whose epochs take 40 s each."""
    with RichProgress(console, console, **options) as progress:
        progress.update_started(["ant"])
        progress.update_planned(PLAN)
        for name, epochs in (("grow", 3), ("compress", 2)):
            progress.phase_started(name, epochs, 300)
            for epoch in range(1, epochs + 1):
                time.seconds += 40
                progress.epoch_finished(name, epoch, epochs, {"classification": 0.5}, 0.1)
            progress.phase_finished(name, 40 * epochs)
            progress.sweep_started("herd", 300)


@pytest.fixture
def time_of_updates(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(progress_module, "UpdateClock", partial(UpdateClock, now=time))
    return time


def test_lines_of_an_update_tell_the_time_left(time_of_updates: Time) -> None:
    notes = io.StringIO()
    updated(Console(file=notes), time_of_updates, seconds_between_notes=0)
    loss = "classification 0.500  lr 0.1"
    assert notes.getvalue().splitlines() == [
        "update: 1 new class (ant)",
        "update: grow, 3 epochs over 300 images",
        f"update: grow epoch 1/3  {loss}  about 0:02:40 left",  # 80 passes at 2 s
        f"update: grow epoch 2/3  {loss}  about 0:02:00 left",
        f"update: grow epoch 3/3  {loss}  about 0:01:20 left",
        "update: compress, 2 epochs over 300 images",
        f"update: compress epoch 1/2  {loss}  about 0:00:40 left",
        f"update: compress epoch 2/2  {loss}",
    ]


def test_the_bar_of_an_update_tells_the_time_left(time_of_updates: Time) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, legacy_windows=False)
    with RichProgress(console) as progress:
        progress.update_started(["ant"])
        progress.update_planned(PLAN)
        progress.phase_started("grow", 3, 300)
        time_of_updates.seconds += 40
        progress.epoch_finished("grow", 1, 3, {"classification": 0.5}, 0.1)
    assert "about 0:02:40 left" in screen.getvalue()
    assert "update  grow" in screen.getvalue()
    assert "tasks" not in screen.getvalue()


def test_a_note_tells_of_a_planned_sweep() -> None:
    notes = io.StringIO()
    with RichProgress(Console(file=io.StringIO()), Console(file=notes)) as progress:
        progress.update_started([])
        progress.update_planned({"features": 500})
        progress.sweep_started("features", 1500)
        progress.sweep_started("herd", 300)
    assert notes.getvalue() == "update: no new class\nupdate: features of 1500 images\n"


def test_clock_is_written_like_one() -> None:
    assert in_clock(3725.4) == "1:02:05"


def test_plain_lines_elsewhere(make_record: MakeRecord) -> None:
    tasks = make_record("grace", 1).tasks
    table, notes = io.StringIO(), io.StringIO()
    with RichProgress(
        Console(file=table), Console(file=notes), seconds_between_notes=1000
    ) as progress:
        feed(progress, tasks)
    assert len(table.getvalue().splitlines()) == 2 + 5
    assert "\x1b" not in table.getvalue() + notes.getvalue()
    # Occasional: two lines per task, no line per epoch.
    assert len(notes.getvalue().splitlines()) == 10
    assert "task 2/5: 2 new classes (class 2, class 3)" in notes.getvalue()

    notes = io.StringIO()
    with RichProgress(
        Console(file=table), Console(file=notes), seconds_between_notes=0
    ) as progress:
        feed(progress, tasks)
    assert "grow epoch 2/3  classification 0.500  lr 0.1" in notes.getvalue()
    assert not any(line.endswith(" ") for line in notes.getvalue().splitlines())


def test_bars_on_a_terminal(make_record: MakeRecord) -> None:
    tasks = make_record("grace", 1).tasks
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, legacy_windows=False)
    with RichProgress(console) as progress:
        feed(progress, tasks)
    shown = screen.getvalue()
    assert "\x1b[" in shown
    assert "5/5 tasks" in shown
    for task in tasks:
        assert f"{task.classifiers['linear'].all:.1f}" in shown


def test_rows_of_methods_that_decide_nothing(make_record: MakeRecord) -> None:
    records = [make_record("finetune"), make_record("joint", evaluated=[5])]
    for record in records:
        table = io.StringIO()
        with RichProgress(Console(file=table), Console(file=io.StringIO())) as progress:
            feed(progress, record.tasks)
        rows = table.getvalue().splitlines()[2:]
        assert len(rows) == 5
        assert all(row.split()[5] == "–" for row in rows)
    assert rows[0].split()[1] == "–"
    assert rows[4].split()[1] != "–"


def test_summary_says_what_is_unknown(
    make_record: MakeRecord, capsys: pytest.CaptureFixture[str]
) -> None:
    record = make_record("joint", evaluated=[5])
    print_summary(record, None)
    out = capsys.readouterr().out
    assert f"Last {record.last:.2f} %   Avg –   forgetting –" in out
    assert "report" not in out


def test_a_verdict_under_the_ceiling_keeps_its_column(make_record: MakeRecord) -> None:
    record = make_record("grace", verdicts=["start", "grow", *["compress (budget)"] * 3])
    tasks = record.tasks
    table = io.StringIO()
    with RichProgress(Console(file=table), Console(file=io.StringIO())) as progress:
        feed(progress, tasks)
    rows = table.getvalue().splitlines()
    assert {len(row) for row in rows} == {80}
    place = rows[1].index("verdict")
    assert [row[place - 1 : place + 7].strip() for row in rows[2:]] == [
        "start",
        "grow",
        "budget",
        "budget",
        "budget",
    ]
