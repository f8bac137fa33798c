"""Carry out the runs of comparisons and studies in this process, which spares importing torch."""

from collections.abc import Sequence
from pathlib import Path

from grace.experiment import run_experiment
from grace.studies.cells import loaded
from grace.studies.pool import Job, Watcher


def carry_out_here(jobs: Sequence[Job], at_once: int, watcher: Watcher) -> dict[str, str]:
    """Carry out the runs in this process, from the files that their own would read."""
    watcher.planned(len(jobs), at_once)
    for job in jobs:
        settings = job.command[job.command.index("run") + 1]
        out = job.command[job.command.index("--out") + 1]
        first_tasks = job.command[job.command.index("--first-tasks") + 1]
        run_experiment(
            loaded(settings, ())[0], Path(out), resume=True, first_tasks=Path(first_tasks)
        )
        watcher.cell_ended(job.cell, None)
    return {}
