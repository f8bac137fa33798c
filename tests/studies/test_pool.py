"""Processes side by side: how many, in which order, and what happens to those that fail."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from grace.settings.experiment import ExperimentSettings
from grace.studies import pool
from grace.studies.cells import Cell
from grace.studies.pool import Job, ListedJobs, LocalProcess, carry_out, why_failed

SETTINGS = ExperimentSettings()


class Log:
    """What the pool told, and how many ran beside each other."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.running: set[str] = set()
        self.most = 0

    def planned(self, num_left: int, at_once: int) -> None:
        self.told.append(f"{num_left} by {at_once}")

    def cell_started(self, cell: Cell) -> None:
        self.running.add(cell.method)
        self.most = max(self.most, len(self.running))
        self.told.append(f"+{cell.method}")

    def cell_progressed(self, cell: Cell, num_tasks: int) -> None:
        self.told.append(f"{cell.method} {num_tasks}")

    def cell_ended(self, cell: Cell, failure: str | None) -> None:
        self.running.remove(cell.method)
        self.told.append(f"-{cell.method}" + (f": {failure}" if failure else ""))

    @property
    def order(self) -> list[str]:
        return [line for line in self.told if line[0] in "+-"]


def job(folder: Path, name: str, script: str, first_task: Path | None = None) -> Job:
    """A process that runs a script; its tasks are the lines of a file of its name."""
    tasks = folder / f"{name}.tasks"
    return Job(
        cell=Cell(name, 1, SETTINGS),
        command=[sys.executable, "-S", "-c", f"import time, sys, pathlib\n{script}"],
        log=folder / f"{name}.txt",
        num_tasks=lambda: len(tasks.read_text()) if tasks.exists() else 0,
        first_task=first_task,
    )


def carried_out(jobs: list[Job], at_once: int) -> tuple[Log, dict[str, str]]:
    log, source = Log(), ListedJobs(jobs)
    carry_out(source, at_once, log, seconds_between=0.01)
    return log, source.failures


def test_as_many_as_are_wanted_run_at_once(tmp_path: Path) -> None:
    jobs = [job(tmp_path, name, "time.sleep(0.15)") for name in "abcde"]
    log, failures = carried_out(jobs, 2)
    assert (log.most, log.told[0]) == (2, "5 by 2")
    assert sorted(log.order) == sorted(f"{sign}{name}" for sign in "+-" for name in "abcde")
    assert log.order[:2] == ["+a", "+b"]
    assert failures == {}


def test_one_after_the_other(tmp_path: Path) -> None:
    log, _ = carried_out([job(tmp_path, name, "pass") for name in "ab"], 1)
    assert log.order == ["+a", "-a", "+b", "-b"]


def test_one_that_fails_keeps_no_other_back_and_says_why(tmp_path: Path) -> None:
    spoken = "print('first'); print('error: no room', file=sys.stderr); print(); sys.exit(2)"
    jobs = [job(tmp_path, "a", spoken), job(tmp_path, "b", "sys.exit(1)"), job(tmp_path, "c", "")]
    log, failures = carried_out(jobs, 1)
    assert failures == {"a-s1": "no room", "b-s1": "it printed nothing"}
    assert (log.order[1], log.order[-1]) == ("-a: no room", "-c")
    assert (tmp_path / "a.txt").read_text() in (
        "first\nerror: no room\n\n",
        "error: no room\nfirst\n\n",
    )


def test_progress_is_told(tmp_path: Path) -> None:
    tasks = iter([0, 0, 1, 1, 2])
    last: list[int] = []

    def num_tasks() -> int:
        last.append(next(tasks, 2))
        if last[-1] == 2:
            (tmp_path / "over").touch()
        return last[-1]

    one = replace(job(tmp_path, "a", gate(tmp_path / "over")), num_tasks=num_tasks)
    log, _ = carried_out([one], 1)
    assert [line for line in log.told if line.startswith("a ")] == ["a 0", "a 1", "a 2"]


def test_what_an_earlier_attempt_said_is_no_reason(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("error: long ago\n")
    _, failures = carried_out([job(tmp_path, "a", "print('now'); sys.exit(1)")], 1)
    assert failures == {"a-s1": "now"}
    assert (tmp_path / "a.txt").read_text() == "error: long ago\nnow\n"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals that kill")
def test_one_that_was_killed_is_told_by_the_signal(tmp_path: Path) -> None:
    script = "import os\nprint('epoch 3')\nos.kill(os.getpid(), {})"
    numbers = {"a": 9, "b": 15, "c": signal.SIGRTMIN + 1}  # The last one has no name.
    jobs = [job(tmp_path, name, script.format(number)) for name, number in numbers.items()]
    _, failures = carried_out(jobs, 2)
    assert failures == {
        "a-s1": "killed by SIGKILL (out of memory? try fewer runs at a time)",
        "b-s1": "killed by SIGTERM",
        "c-s1": f"killed by signal {signal.SIGRTMIN + 1}",
    }


def test_output_that_a_shared_folder_does_not_show_yet_is_no_error(tmp_path: Path) -> None:
    assert why_failed(2, tmp_path / "late.txt") == "it printed nothing"


def test_its_input_ends_with_its_parent(tmp_path: Path) -> None:
    """A parent that is killed starts a job, whose input is closed by the system."""
    done, command = tmp_path / "done", [sys.executable, "-S", "-c"]
    child = f"import sys, pathlib; sys.stdin.read(); pathlib.Path({str(done)!r}).touch()"
    parent = f"""
import os
from pathlib import Path
from grace.studies.pool import Job, LocalProcess
cell = type("Cell", (), {{"name": "a"}})()
LocalProcess(Job(cell, {[*command, child]!r}, Path({str(tmp_path / "log")!r}), lambda: 0))
os._exit(9)
"""
    subprocess.run([sys.executable, "-c", parent], check=False)
    wait_until(done.exists)


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_one_that_does_not_heed_the_request_is_killed(tmp_path: Path) -> None:
    script = "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    one = LocalProcess(job(tmp_path, "a", script))
    wait_until(lambda: (tmp_path / "a.txt").stat().st_size > 0)
    pool._end([one], seconds=0.1)
    assert one.process.returncode not in (0, None)


def gate(path: Path) -> str:
    """Wait, in a script, until a file is there."""
    return f"\nwhile not pathlib.Path({str(path)!r}).exists(): time.sleep(0.01)\n"


def test_one_waits_while_another_trains_the_first_task_that_both_need(tmp_path: Path) -> None:
    shared, other, b_ran = tmp_path / "shared", tmp_path / "other", tmp_path / "b ran"
    # a leaves its network when c is over, and ends when b is.
    leaves = f"""{gate(tmp_path / "c ran")}
p = pathlib.Path({str(shared / "machine")!r})
p.mkdir(parents=True)
(p / '0000.safetensors').touch()
{gate(b_ran)}"""
    jobs = [
        job(tmp_path, "a", leaves, shared),
        job(tmp_path, "b", f"pathlib.Path({str(b_ran)!r}).touch()", shared),
        job(tmp_path, "c", f"pathlib.Path({str(tmp_path / 'c ran')!r}).touch()", other),
    ]
    log, _ = carried_out(jobs, 2)
    # c overtakes b, which starts as soon as a has left the network, not when a is over.
    assert [line for line in log.order if line[0] == "+"] == ["+a", "+c", "+b"]
    assert log.order.index("+b") < log.order.index("-a")


def test_one_whose_first_task_left_nothing_does_not_keep_others_waiting(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    path = str(tmp_path / "a.tasks")
    skips = f"pathlib.Path({path!r}).write_text('x')\ntime.sleep(0.5)"
    log, _ = carried_out([job(tmp_path, "a", skips, shared), job(tmp_path, "b", "", shared)], 2)
    assert log.order == ["+a", "+b", "-b", "-a"]


def test_ctrl_c_ends_the_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = tmp_path / "done"
    script = f"time.sleep(1.5)\npathlib.Path({str(done)!r}).touch()"
    ended: list[int | None] = []
    end = pool._end

    def spy(running: list[LocalProcess]) -> None:
        end(running)
        ended.extend(one.process.returncode for one in running)

    def interrupt(log: Log, cell: Cell, num_tasks: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "_end", spy)
    monkeypatch.setattr(Log, "cell_progressed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        carried_out([job(tmp_path, name, script) for name in "abc"], 2)
    assert len(ended) == 2
    assert all(ended)
    assert not done.exists()
