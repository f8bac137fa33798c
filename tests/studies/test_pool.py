"""Processes side by side: how many, in which order, and what happens to those that fail."""

import sys
from pathlib import Path

import pytest

from grace.configs.experiment import ExperimentSettings
from grace.studies import pool
from grace.studies.cells import Cell
from grace.studies.pool import Job, carry_out, jobs_at_once, run_command

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
    log = Log()
    return log, carry_out(jobs, at_once, log, seconds_between=0.01)


def test_as_many_as_are_wanted_run_at_once(tmp_path: Path) -> None:
    jobs = [job(tmp_path, name, "time.sleep(0.15)") for name in "abcde"]
    log, failures = carried_out(jobs, 2)
    assert log.most == 2
    assert log.told[0] == "5 by 2"
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
    assert failures == {"a-s1": "error: no room", "b-s1": "it said nothing"}
    assert log.order[1] == "-a: error: no room"
    assert log.order[-1] == "-c"
    assert (tmp_path / "a.txt").read_text() in (
        "first\nerror: no room\n\n",
        "error: no room\nfirst\n\n",
    )


def test_progress_is_told(tmp_path: Path) -> None:
    path = str(tmp_path / "a.tasks")
    script = f"""
for text in ('x', 'xx'):
    pathlib.Path({path!r}).write_text(text)
    time.sleep(0.3)"""
    log, _ = carried_out([job(tmp_path, "a", script)], 1)
    assert [line for line in log.told if line.startswith("a ")] == ["a 0", "a 1", "a 2"]


def test_one_waits_while_another_trains_the_first_task_that_both_need(tmp_path: Path) -> None:
    shared, other = tmp_path / "shared", tmp_path / "other"
    leaves = f"""
time.sleep(0.3)
p = pathlib.Path({str(shared)!r})
p.mkdir()
(p / '0000.safetensors').touch()
time.sleep(0.5)"""
    jobs = [
        job(tmp_path, "a", leaves, shared),
        job(tmp_path, "b", "time.sleep(0.1)", shared),
        job(tmp_path, "c", "time.sleep(0.1)", other),
    ]
    log, _ = carried_out(jobs, 2)
    # c overtakes b, which starts as soon as a has left the network, not when a is over.
    assert log.order == ["+a", "+c", "-c", "+b", "-b", "-a"]


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

    def spy(processes: list[object]) -> None:
        end(processes)  # type: ignore[arg-type]
        ended.extend(process.returncode for process in processes)  # type: ignore[attr-defined]

    def interrupt(log: Log, cell: Cell, num_tasks: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "_end", spy)
    monkeypatch.setattr(Log, "cell_progressed", interrupt)
    with pytest.raises(KeyboardInterrupt):
        carried_out([job(tmp_path, name, script) for name in "abc"], 2)
    assert ended == [-15, -15]
    assert not done.exists()


@pytest.mark.parametrize(
    ("cores", "memory", "threads", "device", "expected"),
    [
        (16, 64e9, 1, "cpu", 16),
        (16, 64e9, 4, "cpu", 4),
        (16, 64e9, None, "cpu", 1),
        (2, 64e9, 4, "cpu", 1),
        (16, 7e9, 1, "cpu", 3),
        (2, 1e9, 1, "cpu", 1),
        (16, None, 1, "cpu", 16),
    ],
)
def test_cores_and_memory_decide_how_many(
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    memory: float | None,
    threads: int | None,
    device: str,
    expected: int,
) -> None:
    monkeypatch.setattr(pool, "memory_bytes", lambda: memory and int(memory))
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert jobs_at_once(threads, device) == expected


def test_a_gpu_needs_a_core_and_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "memory_bytes", lambda: 128 * 10**9)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (21 * 10**9, 80 * 10**9))
    assert jobs_at_once(None, "cuda") == 10
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (78 * 10**9, 80 * 10**9))
    assert jobs_at_once(None, "cuda") == 16


def test_a_run_is_carried_out_by_this_very_python() -> None:
    command = run_command(Path("a b.yaml"), {"--out": Path("there")}, "--resume")
    assert command[0] == sys.executable
    assert command[1:] == ["-m", "grace", "run", "a b.yaml", "--out", "there", "--resume"]
