"""Make runs in processes of their own, and read what they left; for comparisons and studies."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

from grace.configs.experiment import ExperimentSettings
from grace.configs.load import dump_settings
from grace.record import RunRecord, read_record
from grace.record.reading import num_tasks
from grace.storage.atomic import remove_leftovers, write_text
from grace.storage.inside import inside
from grace.studies.cells import Cell
from grace.studies.machine import run_command, run_environment, with_threads
from grace.studies.pool import Job
from grace.text.refusals import GraceError


@final
@dataclass(frozen=True)
class Wanted:
    """A run to make.

    Args:
        cell: its name and settings.
        place: directory of its record.
        settings: file to which its settings are written.
        log: file to which its output is appended.
        first_task: fingerprint of its first task.
    """

    cell: Cell
    place: Path
    settings: Path
    log: Path
    first_task: str


def make_folders(directory: Path) -> None:
    """Create the folders of runs in a directory: for settings, records and logs."""
    for folder in ("runs", "cells", "logs"):  # The first makes a comparison known as one.
        inside(directory, folder).mkdir(exist_ok=True)
    for place in (directory, directory / "cells"):
        remove_leftovers(place)
    inside(directory, "first-tasks")  # Its first writer makes it.


def jobs_of(
    wanted: Sequence[Wanted], device: str, at_once: int, first_tasks: Path | None
) -> list[Job]:
    """Write the settings of runs to files; return a job for each, which goes on if it had begun.

    Args:
        wanted: the runs.
        device: device of the runs, "cpu" or "cuda".
        at_once: runs at a time, which share the cores.
        first_tasks: folder in which runs share the networks of first tasks; ``None``: they do not.
    """
    environment = run_environment(at_once)
    jobs: list[Job] = []
    for run in wanted:
        write_text(run.settings, dump_settings(with_threads(run.cell.settings, device)))
        options = {"--out": run.place}
        if first_tasks is not None:
            options["--first-tasks"] = first_tasks
        flags = ("--resume", "--no-report", "--with-parent")
        jobs.append(
            Job(
                cell=run.cell,
                command=run_command(run.settings, options, *flags),
                log=run.log,
                num_tasks=partial(num_tasks, run.place),
                first_task=None if first_tasks is None else first_tasks / run.first_task,
                environment=environment,
            )
        )
    return jobs


def read_runs(folder: Path) -> tuple[dict[Path, RunRecord], dict[Path, GraceError]]:
    """Read all runs of a folder; return their records and the errors of damaged ones.

    Args:
        folder: folder that holds a directory for each run; it need not exist.
    """
    records: dict[Path, RunRecord] = {}
    damaged: dict[Path, GraceError] = {}
    for place in sorted(file.parent for file in folder.glob("*/run.json")):
        try:
            records[place] = read_record(place)
        except GraceError as error:
            damaged[place] = error
        except OSError as error:
            damaged[place] = GraceError(str(error))
    return records, damaged


def device_of(settings: ExperimentSettings) -> str:
    """Return the device that a run would use, "cpu" or "cuda"."""
    from grace.engine.device import device_name

    return device_name(settings.engine)
