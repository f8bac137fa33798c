import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from grace.cli.clock import RunClock, in_clock
from grace.cli.progress import RichProgress, print_summary
from grace.record import RunProgress, TaskRecord
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
    times = iter([0.0, 30.0, 30.0, 40.0, 40.0, 46.0])
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


def test_clock_is_written_like_one() -> None:
    assert (in_clock(3725.4), in_clock(None)) == ("1:02:05", "-:--:--")


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


def test_summary_says_what_is_unknown(make_record: MakeRecord) -> None:
    out = io.StringIO()
    record = make_record("joint", evaluated=[5])
    print_summary(record, None, Console(file=out))
    assert f"Last {record.last:.2f} %   Avg –   forgetting –" in out.getvalue()
    assert "report" not in out.getvalue()


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
