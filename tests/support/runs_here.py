"""Carry out the runs of comparisons and studies in this process, which spares importing torch."""

import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from grace.base.errors import GraceError
from grace.runs.run import run as run_experiment
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import ConfigWarning, load_experiment
from grace.studies.workers import Job, Unwatched, Worker


def run_in_this_process(job: Job, stopping: threading.Event) -> str | None:
    """A worker that carries out a run as its own process would, from the same file."""
    first_tasks = Path(job.command[job.command.index("--first-tasks") + 1])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConfigWarning)
            settings = load_experiment(job.command[1])
        run_experiment(settings, directory=job.place, resume=True, first_tasks=first_tasks)
    except GraceError as error:
        return str(error)
    return None


def here(settings: ExperimentSettings) -> Sequence[Worker]:
    """Return one worker in this process."""
    return [run_in_this_process]


def workers(run: Callable[[Job], str | None], count: int = 1) -> Callable[..., Sequence[Worker]]:
    """Return workers that call a function for each run."""
    return lambda settings: [lambda job, stopping: run(job)] * count


class Started(Unwatched):
    """The names of the runs that were made, and how many were planned."""

    def __init__(self) -> None:
        self.planned_runs: list[tuple[int, int]] = []
        self.names: list[str] = []
        self.left: list[int] = []

    def planned(self, num_left: int, at_once: int) -> None:
        self.planned_runs.append((num_left, at_once))

    def ended(self, name: str, failure: str | None, num_left: int) -> None:
        self.names.append(name)
        self.left.append(num_left)


def left_by_killed(run: Path) -> None:
    """Leave what a process leaves that is killed after its run was recorded as finished."""
    (run / "checkpoint" / "objects").mkdir(parents=True)
    (run / "checkpoint" / "objects" / "weights").touch()
    (run / "lock").touch()
