"""Several processes at once, one for each cell of a comparison."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, final

from grace.storage.memory import memory_bytes
from grace.studies.cells import Cell


class Watcher(Protocol):
    """Told what happens to the cells."""

    def planned(self, num_left: int, at_once: int) -> None:
        """So many are to be carried out, so many at a time."""

    def cell_started(self, cell: Cell) -> None:
        """A cell's process runs."""

    def cell_progressed(self, cell: Cell, num_tasks: int) -> None:
        """So many of its tasks are done."""

    def cell_ended(self, cell: Cell, failure: str | None) -> None:
        """It is over; why it failed, if it did."""


@final
@dataclass(frozen=True)
class Job:
    """A cell with what its process is started with.

    Args:
        cell: the run.
        command: program and arguments.
        log: file that gets all its output.
        num_tasks: tells how many of its tasks are done.
        first_task: folder in which the job leaves the network of its first task to others that
            name the same one; none if it shares none.
    """

    cell: Cell
    command: Sequence[str]
    log: Path
    num_tasks: Callable[[], int]
    first_task: Path | None = None

    def may_start(self, beside: "Sequence[Job]") -> bool:
        """Whether none of the jobs that run is training the first task that this one needs."""
        if self.first_task is None or any(self.first_task.glob("*.safetensors")):
            return True
        return not any(job.first_task == self.first_task and job.num_tasks() == 0 for job in beside)


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
        By the names of the cells that failed, the last line of their output.
    """
    assert at_once >= 1
    watcher.planned(len(jobs), at_once)
    waiting, running = list(jobs), dict[str, tuple[Job, subprocess.Popen[bytes], int]]()
    failures: dict[str, str] = {}
    try:
        while waiting or running:
            beside = [job for job, _, _ in running.values()]
            free = [job for job in waiting if len(beside) < at_once and job.may_start(beside)]
            if free:
                job = free[0]
                waiting.remove(job)
                running[job.cell.name] = (job, _start(job), -1)
                watcher.cell_started(job.cell)
                continue
            for name, (job, process, told) in list(running.items()):
                done = job.num_tasks()
                if done != told:
                    running[name] = (job, process, done)
                    watcher.cell_progressed(job.cell, done)
                if process.poll() is not None:
                    del running[name]
                    failure = _last_line(job.log) if process.returncode else None
                    if failure is not None:
                        failures[name] = failure
                    watcher.cell_ended(job.cell, failure)
            time.sleep(seconds_between)
    finally:
        _end([process for _, process, _ in running.values()])
    return failures


def jobs_at_once(threads: int | None, device: str, bytes_each: int = 2 * 10**9) -> int:
    """Say how many runs this machine carries out at once.

    Args:
        threads: CPU threads of one run; none means all.
        device: where they compute, "cpu" or "cuda".
        bytes_each: memory that one run is taken to need, on the machine and on a GPU.

    Returns:
        As many as there are cores for the threads and memory for the runs; at least 1. On a GPU a
        run needs one core, whatever ``threads`` is.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = cores or 1
    wanted = [cores // (1 if device == "cuda" else threads or cores)]
    memory = memory_bytes()
    if memory is not None:
        wanted.append(memory // bytes_each)
    if device == "cuda":
        import torch

        wanted.append(torch.cuda.mem_get_info()[0] // bytes_each)
    return max(1, min(wanted))


def run_command(settings: Path, options: Mapping[str, Path], *flags: str) -> list[str]:
    """Make the command that carries out one run with this very Python.

    Args:
        settings: file of the run's settings.
        options: of ``grace run`` with their values.
        flags: further options without a value.
    """
    given = [text for name, path in options.items() for text in (name, str(path))]
    return [sys.executable, "-m", "grace", "run", str(settings), *given, *flags]


def _start(job: Job) -> "subprocess.Popen[bytes]":
    with job.log.open("ab") as log:
        return subprocess.Popen(  # noqa: S603 - our own command, no shell
            job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def _end(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        if process.poll() is None:
            process.kill()
            process.wait()
