"""Run the cells of a comparison, each in its own process, several at a time."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, final

from grace.storage.inside import open_to_append
from grace.studies.cells import Cell


class Watcher(Protocol):
    """Receives the events of a comparison's runs."""

    def planned(self, num_left: int, at_once: int) -> None:
        """Called first: ``num_left`` runs will be made, ``at_once`` at a time."""
        return

    def cell_started(self, cell: Cell) -> None:
        """Called when the process of a cell has started."""
        return

    def cell_progressed(self, cell: Cell, num_tasks: int) -> None:
        """Called when a cell has finished another task; ``num_tasks`` are finished in all."""
        return

    def cell_ended(self, cell: Cell, failure: str | None) -> None:
        """Called when a cell has ended; ``failure`` is the reason, ``None`` after a success."""
        return


@final
class Unwatched(Watcher):
    """A watcher that ignores all events."""


@final
@dataclass(frozen=True)
class Job:
    """A cell and how to start its process.

    Args:
        cell: the run.
        command: program and arguments. The process must end when its standard input is closed,
            which happens when this process ends.
        log: file to which its output is appended.
        num_tasks: returns the number of its finished tasks.
        first_task: folder of its first task's network, shared by all jobs with the same folder;
            ``None``: not shared.
        environment: variables that it gets in addition to those of this process.
    """

    cell: Cell
    command: Sequence[str]
    log: Path
    num_tasks: Callable[[], int]
    first_task: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    def may_start(self, beside: "Sequence[Job]") -> bool:
        """Return False while a running job trains the first task that this job needs."""
        if self.first_task is None or any(self.first_task.rglob("*.safetensors")):
            return True
        return not any(job.first_task == self.first_task and job.num_tasks() == 0 for job in beside)


@final
class _Running:
    """The process of a job, and the last number of tasks that was reported."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.num_reported = -1
        self._log_start = job.log.stat().st_size if job.log.exists() else 0
        with open_to_append(job.log) as log:
            # The process ends when this pipe is closed, so that it never outlives its parent.
            self.process = subprocess.Popen(  # noqa: S603 - our own command, no shell
                job.command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **job.environment},
            )

    def failure(self) -> str | None:
        """Return why the process failed (signal or last line of output); ``None``: it did not."""
        code = self.process.returncode
        if code == 0:
            return None
        if code < 0:
            hint = " (out of memory? try fewer runs at a time)" if code == -9 else ""
            return f"killed by {signal.Signals(-code).name}{hint}"
        with self.job.log.open("rb") as log:
            # Its end names the reason; a run may print without end.
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, size - 2**20))
            text = log.read(2**20).decode("utf-8", errors="replace")
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        # The command marks its error; torch may print more after it.
        mark = "error: "
        marked = [line[len(mark) :] for line in lines if line.startswith(mark)]
        return ([*lines, *marked] or ["it printed nothing"])[-1]


Engine = Callable[[Sequence[Job], int, Watcher], Mapping[str, str]]
"""Carries out jobs, so many at a time, and returns the reasons of failures by cell.

:func:`carry_out` is the one of this machine. An engine only starts processes: what they did is read
from their records.
"""


def carry_out(
    jobs: Sequence[Job], at_once: int, watcher: Watcher, seconds_between: float = 0.3
) -> dict[str, str]:
    """Run jobs in processes, several at a time, in the given order as far as they may start.

    A failure does not stop the other jobs. When this function is interrupted (Ctrl-C), it ends all
    running processes; their runs can be resumed later.

    Args:
        jobs: jobs in order.
        at_once: processes at a time, at least 1.
        watcher: receives the events.
        seconds_between: pause between two checks of the processes.

    Returns:
        Reasons of failures, by the name of the cell.
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
                # Polled first, so that everything written before the end is counted below.
                ended = one.process.poll() is not None
                done = one.job.num_tasks()
                if done != one.num_reported:
                    one.num_reported = done
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
