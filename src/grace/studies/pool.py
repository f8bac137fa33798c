"""Hand out the runs of a comparison or study to processes, several at a time."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, final

from typing_extensions import override

from grace.base.files import open_to_append
from grace.settings.experiment import ExperimentSettings
from grace.studies.cells import Cell


class Watcher(Protocol):
    """Receives the events of a comparison's runs."""

    def planned(self, num_left: int, at_once: int) -> None:
        """Called first: ``num_left`` runs will be made, ``at_once`` at a time."""
        return

    def left(self, num_left: int) -> None:
        """Called when a finished run stands for others, or makes more necessary."""
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
        lock: file that its process holds; ``None``: there is none.
    """

    cell: Cell
    command: Sequence[str]
    log: Path
    num_tasks: Callable[[], int]
    first_task: Path | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    lock: Path | None = None

    def may_start(self, beside: "Sequence[Job]") -> bool:
        """Return False while a running job trains the first task that this job needs."""
        if self.first_task is None or any(self.first_task.rglob("*.safetensors")):
            return True
        return not any(job.first_task == self.first_task and job.num_tasks() == 0 for job in beside)


class JobSource(Protocol):
    """Hands out jobs one by one, since some depend on the records of others."""

    @property
    def num_left(self) -> int:
        """The number of jobs that have not ended, as far as it is known."""
        ...

    @property
    def is_over(self) -> bool:
        """False while a job may still come, such as one that needs a run of another machine."""
        ...

    def take(self, running: Sequence[Job]) -> Job | None:
        """Hand out the next job that may start beside the running ones; ``None``: not now."""
        ...

    def ended(self, job: Job, failure: str | None) -> None:
        """Called when a job has ended; ``failure`` is the reason, ``None`` after a success."""
        ...


@final
class ListedJobs(JobSource):
    """A fixed list of jobs; the first one that may start comes next."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.failures: dict[str, str] = {}
        """Reasons of failures, by the name of the cell."""
        self._waiting = list(jobs)

    @property
    @override
    def num_left(self) -> int:
        return len(self._waiting)

    @property
    @override
    def is_over(self) -> bool:
        return not self._waiting

    @override
    def take(self, running: Sequence[Job]) -> Job | None:
        job = next((job for job in self._waiting if job.may_start(running)), None)
        if job is not None:
            self._waiting.remove(job)
        return job

    @override
    def ended(self, job: Job, failure: str | None) -> None:
        if failure is not None:
            self.failures[job.cell.name] = failure


class Attempt(Protocol):
    """A job that was started, here or on another machine."""

    @property
    def job(self) -> Job:
        """The job."""
        ...

    def has_ended(self) -> bool:
        """Return True if its process is over."""
        ...

    def failure(self) -> str | None:
        """Return why it failed, after its end; ``None``: it did not."""
        ...

    def stop(self) -> None:
        """Ask it to end."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until it has ended; after so many seconds force it to."""
        ...


class Machines(Protocol):
    """Where runs are carried out. What they did is read from their records."""

    @property
    def seconds_between(self) -> float:
        """Pause between two looks at what is done."""
        ...

    def device(self, settings: ExperimentSettings) -> str:
        """Return the device of a run, "cpu" or "cuda"."""
        ...

    def at_once(self, settings: ExperimentSettings) -> int:
        """Return how many such runs can be carried out at a time, at least 1."""
        ...

    def start(self, job: Job) -> Attempt:
        """Start a job."""
        ...


@final
class LocalProcess(Attempt):
    """A job as a process on this machine.

    Args:
        job: the job.
        environment: further variables of its environment.
    """

    def __init__(self, job: Job, environment: Mapping[str, str] | None = None) -> None:
        self._job = job
        self._log_start = job.log.stat().st_size if job.log.exists() else 0
        variables = {**job.environment, **(environment or {})}
        self.process = start_process(job.command, job.log, variables)

    @property
    @override
    def job(self) -> Job:
        return self._job

    @override
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    @override
    def failure(self) -> str | None:
        self._close()
        return why_failed(self.process.returncode, self._job.log, self._log_start)

    @override
    def stop(self) -> None:
        self.process.terminate()

    @override
    def wait(self, seconds: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._close()

    def _close(self) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()


def start_process(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str],
    folder: Path | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a program of ours that ends when its input is closed, at the latest with this process.

    Args:
        command: program and arguments.
        log: file to which its output is appended.
        environment: variables in addition to those of this process.
        folder: where its relative paths begin; ``None``: where those of this process do.
    """
    with open_to_append(log) as file:
        return subprocess.Popen(  # noqa: S603 - our own command, no shell
            command,
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **environment},
        )


def why_failed(code: int, log: Path, start: int = 0) -> str | None:
    """Return why a process failed (signal or last line of output); ``None``: it did not.

    Args:
        code: its exit code; negative: the number of the signal that killed it.
        log: file of its output.
        start: where its output begins in the file.
    """
    if code == 0:
        return None
    if code < 0:
        hint = " (out of memory? try fewer runs at a time)" if code == -9 else ""
        names = {number.value: number.name for number in signal.Signals}
        return f"killed by {names.get(-code, f'signal {-code}')}{hint}"
    text = ""
    # A shared folder may show a new file of another machine later.
    with suppress(FileNotFoundError), log.open("rb") as file:
        # Its end names the reason; a run may print without end.
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - 2**20))
        text = file.read(2**20).decode("utf-8", errors="replace")
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    # The command marks its error; torch may print more after it.
    mark = "error: "
    marked = [line[len(mark) :] for line in lines if line.startswith(mark)]
    return ([*lines, *marked] or ["it printed nothing"])[-1]


def carry_out(
    source: JobSource,
    at_once: int,
    watcher: Watcher,
    *,
    start: Callable[[Job], Attempt] = LocalProcess,
    seconds_between: float = 0.3,
) -> None:
    """Carry out the jobs of a source, several at a time.

    A failure does not stop the other jobs. When this function is interrupted (Ctrl-C), it ends all
    running processes; their runs can be resumed later.

    Args:
        source: hands out the jobs.
        at_once: jobs at a time, at least 1.
        watcher: receives the events.
        start: starts a job.
        seconds_between: pause between two checks of the processes.
    """
    assert at_once >= 1
    watcher.planned(source.num_left, at_once)
    running: list[Attempt] = []
    reported: dict[str, int] = {}
    try:
        while True:
            while len(running) < at_once:
                job = source.take([one.job for one in running])
                if job is None:
                    break
                running.append(start(job))
                watcher.cell_started(job.cell)
            if not running and source.is_over:
                return
            for one in list(running):
                # Asked first, so that everything written before the end is counted below.
                ended, cell = one.has_ended(), one.job.cell
                done = one.job.num_tasks()
                if done != reported.get(cell.name):
                    reported[cell.name] = done
                    watcher.cell_progressed(cell, done)
                if ended:
                    running.remove(one)
                    failure = one.failure()
                    watcher.cell_ended(cell, failure)
                    source.ended(one.job, failure)
            time.sleep(seconds_between)
    finally:
        _end(running)


def _end(running: Sequence[Attempt], seconds: float = 10) -> None:
    for one in running:
        one.stop()
    for one in running:
        one.wait(seconds)
