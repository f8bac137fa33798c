"""Carry out the runs of a study: workers that take the next run whose lock is free.

There is no scheduler. A run locks its own folder, so that any number of workers, in any number of
processes and on any machines that share the folder, can work on one study. A worker is a function
that carries out one run and returns why it failed; here it is a process on this machine.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, final

import grace
from grace.base.atomic import write_text
from grace.base.files import inside, open_to_append
from grace.base.lock import BUSY, holder
from grace.base.machine import memory_bytes, usable_cores
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import dump_settings
from grace.studies.plan import Plan, RunSpec

_PAUSE = 1.0
"""Seconds between two looks at what other processes have made."""


@final
@dataclass(frozen=True)
class Job:
    """A run to carry out.

    Args:
        name: shown to people.
        place: folder of its record, as an absolute path.
        command: arguments of ``grace``, which goes on if the run had begun.
        log: file to which its output is appended.
        first_task: fingerprint of its first task, which runs share.
    """

    name: str
    place: Path
    command: Sequence[str]
    log: Path
    first_task: str


Worker = Callable[[Job, threading.Event], str | None]
"""Carries out a run and returns why it failed; it ends the run soon after the event is set."""


class Watcher(Protocol):
    """Receives the events of the runs of a study; the methods may be called by any thread."""

    def planned(self, num_left: int, at_once: int) -> None:
        """Called first: ``num_left`` runs will be made, ``at_once`` at a time."""
        return

    def started(self, name: str, place: Path) -> None:
        """Called when a worker takes a run, whose record will be at ``place``."""
        return

    def ended(self, name: str, failure: str | None, num_left: int) -> None:
        """Called when a run has ended; ``failure`` is the reason, ``None`` after a success."""
        return


@final
class Unwatched(Watcher):
    """Ignores all events."""


def carry_out(plan: Plan, out: Path, workers: Sequence[Worker], watcher: Watcher) -> None:
    """Make the runs that are left; a failure does not stop the others.

    Interrupted (Ctrl-C), it ends the running ones, which can be resumed later.

    Args:
        plan: the runs; its records, and what is found and left, are kept up to date.
        out: folder of all studies.
        workers: each carries out one run at a time.
        watcher: receives the events.
    """
    if plan.is_over:
        return
    out = out.absolute()  # So that no path is read as an option, and others find it.
    for folder in ("runs", "cells", "logs"):
        inside(out, folder).mkdir(parents=True, exist_ok=True)
    watcher.planned(len(plan.left) + len(plan.waiting), len(workers))
    queue = _Queue(plan, out, watcher)
    with ThreadPoolExecutor(len(workers)) as pool:
        tasks = [pool.submit(queue.work, worker) for worker in workers]
        try:
            for task in tasks:
                while not task.done():
                    time.sleep(0.05)  # So that Ctrl-C is noticed.
                task.result()
        finally:
            queue.stopping.set()


@final
class _Queue:
    """Hands out the runs of a plan to workers in threads."""

    def __init__(self, plan: Plan, out: Path, watcher: Watcher) -> None:
        self._plan, self._out, self._watcher = plan, out, watcher
        self._changed = threading.Condition()
        self.stopping = threading.Event()
        """Set: no further run begins, and the running ones end."""
        self._running: dict[str, tuple[RunSpec, Job]] = {}

    def work(self, worker: Worker) -> None:
        """Take runs and carry them out until none is left."""
        try:
            while (job := self._take()) is not None:
                self._watcher.started(job.name, job.place)
                failure = worker(job, self.stopping)
                with self._changed:
                    self._ended(job, failure)
                    self._changed.notify_all()
        except BaseException:
            self.stopping.set()  # An error of the worker itself, not of a run.
            raise

    def _take(self) -> Job | None:
        """Return the next run that may begin; ``None``: there will be none."""
        with self._changed:
            while not self.stopping.is_set():
                elsewhere = self._look_elsewhere()
                if (job := self._next(elsewhere)) is not None:
                    return job
                # What waits, waits for a run that is being made, or for one that has failed.
                if not self._running and not elsewhere:
                    return None
                self._changed.wait(_PAUSE)
        return None

    def _look_elsewhere(self) -> set[str]:
        """Read what other processes have finished; return the runs that they are making."""
        busy = set[str]()
        for place in {self._place(run) for run in self._plan.left}:
            if place.name not in self._running and (place / "run.json").exists():
                if holder(place / "lock") is not None:
                    busy.add(place.name)
                else:
                    self._plan.records.read(place)
        self._plan.update()
        return busy

    def _next(self, elsewhere: set[str]) -> Job | None:
        """Choose a free run; those of grids last, since others may spare them."""
        plan = self._plan
        taken = elsewhere | self._running.keys()
        free = [run for run in plan.left if self._place(run).name not in taken]
        # Points of a grid that are far from each other come first, and at a time: those beside them
        # may decide alike. Bits in reverse order say how often the way to a point was halved.
        streams = Counter(plan.stream(run) for run, _ in self._running.values())
        order = {run: f"{place:016b}"[::-1] for place, run in enumerate(plan.runs)}
        free.sort(
            key=lambda run: (streams[plan.stream(run)], order[run]) if run.is_grid else (-1, "")
        )
        # Runs that begin alike wait for the first of them, whose network they share.
        beginning = {
            job.first_task
            for _, job in self._running.values()
            if not (job.place / "tasks.jsonl").exists()
        }
        for run in free:
            first_task = plan.identity(run)["first_task"]
            left = inside(self._out, "first-tasks", first_task).rglob("*.safetensors")
            if first_task not in beginning or list(left):
                job = self._job(run)
                self._running[job.place.name] = (run, job)
                return job
        return None

    def _place(self, run: RunSpec) -> Path:
        return inside(self._out, "runs", self._plan.identity(run)["run"])

    def _job(self, run: RunSpec) -> Job:
        place, settings = self._place(run), with_threads(self._plan.left[run])
        file = inside(self._out, "cells", f"{place.name}.yaml")
        write_text(file, dump_settings(settings))
        shared = inside(self._out, "first-tasks")
        return Job(
            run.name,
            place,
            [
                *("run", str(file), "--out", str(place), "--first-tasks", str(shared)),
                *("--resume", "--no-report", "--with-parent"),
            ],
            inside(self._out, "logs", f"{place.name}.txt"),
            self._plan.identity(run)["first_task"],
        )

    def _ended(self, job: Job, failure: str | None) -> None:
        """Take note of the record of a run that has ended, or of why it failed."""
        plan, name = self._plan, job.place.name
        alike = [run for run in plan.left if self._place(run).name == name]
        del self._running[name]
        why = plan.records.read(job.place)
        plan.update()
        failed = [run for run in alike if run in plan.left]
        if self.stopping.is_set():
            return  # It was ended, and can be resumed.
        if failure is not None and BUSY in failure:
            return  # Another process was faster; if that has ended since, the run is free again.
        if not failed or holder(job.place / "lock") is not None:
            failure = None
        elif job.place in plan.records.known:
            # A record with this fingerprint that is not found has other settings or versions.
            failure = "its record has other settings or versions"
        else:
            failure = failure or why or "its record is not complete"
        if failure is not None:
            plan.failures |= dict.fromkeys(failed, failure)
            plan.update()
        self._watcher.ended(job.name, failure, len(plan.left) + len(plan.waiting))


def workers_here(settings: ExperimentSettings, at_once: int | None = None) -> list[Worker]:
    """Return workers of this machine; on GPUs each in turn gets one, and sees no other.

    Args:
        settings: of one of the runs.
        at_once: number of workers; ``None``: as many as cores (``engine.threads`` for each run, by
            default 1) and memory allow, and on a GPU four of small images, or one.
    """
    from grace.engine.device import device_name

    gpus = visible_gpus() if device_name(settings.engine) == "cuda" else ()
    most = [usable_cores() // (1 if gpus else settings.engine.threads or 1)]
    if (memory := memory_bytes()) is not None:
        most.append(memory // (2 * 10**9))
    if gpus:
        most.append(len(gpus) * runs_on_a_gpu(settings))
    count = at_once or max(1, min(most))
    threads = {"OMP_NUM_THREADS": str(max(1, usable_cores() // count))}
    if "OMP_NUM_THREADS" in os.environ or count == 1:
        threads = {}
    gpu = {} if len(gpus) < 2 else {n: {"CUDA_VISIBLE_DEVICES": g} for n, g in enumerate(gpus)}
    return [
        partial(run_here, environment={**threads, **gpu.get(n % max(1, len(gpus)), {})})
        for n in range(count)
    ]


def runs_on_a_gpu(settings: ExperimentSettings) -> int:
    """Return how many such runs share a GPU: several of images of at most 64 pixels a side."""
    is_small = (settings.data.image_size or 32) <= 64 and settings.data.source != "imagenet100"
    return 4 if is_small else 1


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    import torch

    count = torch.cuda.device_count()
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = given.split(",") if given else map(str, range(count))
    return tuple(name.strip() for name in names)[:count]


def with_threads(settings: ExperimentSettings) -> ExperimentSettings:
    """Set the number of CPU threads to 1 if it is not set; on a GPU it is left as it is.

    Rounding depends on the number of threads. torch's own choice would depend on how many runs
    there are at a time, and so would every accuracy.
    """
    from grace.engine.device import device_name

    if settings.engine.threads is not None or device_name(settings.engine) == "cuda":
        return settings
    engine = settings.engine.model_copy(update={"threads": 1})
    return settings.model_copy(update={"engine": engine})


def run_here(
    job: Job, stopping: threading.Event, environment: Mapping[str, str] | None = None
) -> str | None:
    """Carry out a run in a process of its own, which ends with this one; return why it failed."""
    start = job.log.stat().st_size if job.log.exists() else 0
    package = str(Path(grace.__file__).parents[1])
    variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
        "PYTHONUTF8": "1",
        "PYTHONUNBUFFERED": "1",
        **(environment or {}),
    }
    with open_to_append(job.log) as log:
        process = subprocess.Popen(  # noqa: S603 - our own command, no shell
            # -P: no module is imported from the current folder.
            [sys.executable, "-P", "-m", "grace", *job.command],
            stdin=subprocess.PIPE,  # It ends when this is closed, at the latest with this process.
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **variables},
        )
    try:
        while process.poll() is None and not stopping.is_set():
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
    finally:
        _end(process)
    return why_failed(process.returncode, job.log, start)


def _end(process: "subprocess.Popen[bytes]", seconds: float = 10) -> None:
    """End a process, by force after some seconds; one that is over is left as it is."""
    assert process.stdin is not None
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()
        process.wait()
    with suppress(OSError):
        process.stdin.close()


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
    marked = [line for line in lines if line.startswith("error: ")]
    return ["it printed nothing", *lines, *marked][-1].removeprefix("error: ")
