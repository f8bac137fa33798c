"""Several processes at once, one for each cell of a comparison."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, final

from grace.studies.cells import Cell


class Watcher(Protocol):
    """Told what happens to the cells."""

    def planned(self, num_left: int, at_once: int) -> None:
        """So many are to be carried out, so many at a time."""
        return

    def cell_started(self, cell: Cell) -> None:
        """A cell's process runs."""
        return

    def cell_progressed(self, cell: Cell, num_tasks: int) -> None:
        """So many of its tasks are done."""
        return

    def cell_ended(self, cell: Cell, failure: str | None) -> None:
        """It is over; why it failed, if it did."""
        return


@final
class Unwatched(Watcher):
    """A watcher that shows nothing."""


@final
@dataclass(frozen=True)
class Job:
    """A cell with what its process is started with.

    Args:
        cell: the run.
        command: program and arguments; its input ends when the process that started it does.
        log: file to which all its output is added.
        num_tasks: tells how many of its tasks are done.
        first_task: folder in which the job leaves the network of its first task to others that
            name the same one; none if it shares none.
        environment: variables that it gets beside those of this process.
    """

    cell: Cell
    command: Sequence[str]
    log: Path
    num_tasks: Callable[[], int]
    first_task: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def may_start(self, beside: "Sequence[Job]") -> bool:
        """Whether none of the jobs that run is training the first task that this one needs."""
        if self.first_task is None or any(self.first_task.rglob("*.safetensors")):
            return True
        return not any(job.first_task == self.first_task and job.num_tasks() == 0 for job in beside)


@final
class _Running:
    """A job's process, and what was told of it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.told = -1
        self._log_start = job.log.stat().st_size if job.log.exists() else 0
        with job.log.open("ab") as log:
            # The open input is what it knows its parent by: it ends when that is closed.
            self.process = subprocess.Popen(  # noqa: S603 - our own command, no shell
                job.command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **job.environment},
            )

    def failure(self) -> str | None:
        """Say why it failed, if it did: by what killed it, or its last words."""
        code = self.process.returncode
        if code == 0:
            return None
        if code < 0:
            hint = " (out of memory? try fewer --jobs)" if code == -9 else ""
            return f"killed by {signal.Signals(-code).name}{hint}"
        with self.job.log.open("rb") as log:
            log.seek(self._log_start)
            text = log.read().decode("utf-8", errors="replace")
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        # An error is marked so by the command; torch may print more after it.
        mark = "error: "
        marked = [line[len(mark) :] for line in lines if line.startswith(mark)]
        return ([*lines, *marked] or ["it said nothing"])[-1]


def carry_out(
    jobs: Sequence[Job], at_once: int, watcher: Watcher, seconds_between: float = 0.3
) -> dict[str, str]:
    """Run processes, several at once, the first that may start first.

    One that fails keeps none of the others back. When this function is left early (Ctrl-C), the
    processes that run are ended: what they had begun can go on later.

    Args:
        jobs: in order.
        at_once: processes at a time, at least 1.
        watcher: told what happens.
        seconds_between: pause between two looks at them.

    Returns:
        By the names of the cells that failed, why.
    """
    assert at_once >= 1
    watcher.planned(len(jobs), at_once)
    waiting: list[Job] = list(jobs)
    running: list[_Running] = []
    failures: dict[str, str] = {}
    try:
        while waiting or running:
            beside = [one.job for one in running]
            free = [job for job in waiting if len(beside) < at_once and job.may_start(beside)]
            if free:
                waiting.remove(free[0])
                running.append(_Running(free[0]))
                watcher.cell_started(free[0].cell)
                continue
            for one in list(running):
                # Asked first: what is written before the end is then seen.
                ended = one.process.poll() is not None
                done = one.job.num_tasks()
                if done != one.told:
                    one.told = done
                    watcher.cell_progressed(one.job.cell, done)
                if ended:
                    running.remove(one)
                    _close(one.process)
                    failure = one.failure()
                    if failure is not None:
                        failures[one.job.cell.name] = failure
                    watcher.cell_ended(one.job.cell, failure)
            time.sleep(seconds_between)
    finally:
        _end([one.process for one in running])
    return failures


def _close(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    with suppress(OSError):
        process.stdin.close()


def _end(processes: "Sequence[subprocess.Popen[bytes]]", seconds: float = 10) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        if process.poll() is None:
            process.kill()
            process.wait()
        _close(process)
