"""Carry out the runs of comparisons and studies in this process, which spares importing torch."""

from pathlib import Path
from typing import Any

from grace.base.errors import BusyError
from grace.runs.run import run_experiment
from grace.studies.cells import loaded
from grace.studies.pool import Job, JobSource, Watcher


def carry_out_here(
    source: JobSource, at_once: int, watcher: Watcher, slow: str = "", **_: Any
) -> None:
    """Carry out the runs in this process, from the files that their own would read.

    Args:
        source: hands out the jobs.
        at_once: passed on to the watcher.
        watcher: receives the events.
        slow: label of a run that ends only when no other one may start beside it.
    """
    watcher.planned(source.num_left, at_once)
    held: list[Job] = []
    while (job := source.take(held)) is not None or held:
        if job is not None and slow and job.cell.label == slow and not held:
            held.append(job)
            continue
        job = job or held.pop()
        settings = job.command[job.command.index("run") + 1]
        out = job.command[job.command.index("--out") + 1]
        first_tasks = job.command[job.command.index("--first-tasks") + 1]
        failure = None
        try:
            run_experiment(
                loaded(settings, ())[0], Path(out), resume=True, first_tasks=Path(first_tasks)
            )
        except BusyError as error:
            failure = str(error)
        watcher.cell_ended(job.cell, failure)
        source.ended(job, failure)


def left_by_killed(run: Path) -> None:
    """Leave what a process leaves that is killed after its run was recorded as finished."""
    (run / "checkpoint" / "objects").mkdir(parents=True)
    (run / "checkpoint" / "objects" / "weights").touch()
    (run / "lock").touch()
