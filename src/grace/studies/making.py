"""Make runs in processes of their own, and read what they left; for comparisons and studies."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

from grace.base.atomic import remove_leftovers, write_text
from grace.base.errors import GraceError
from grace.base.files import inside
from grace.runs import RunRecord, read_record
from grace.runs.reading import num_tasks
from grace.settings.load import dump_settings
from grace.studies.cells import Cell
from grace.studies.machine import run_command, run_environment, with_threads
from grace.studies.pool import Job


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
    for place in (directory, directory / "cells", inside(directory, "taken")):
        if place.is_dir():
            remove_leftovers(place)
    inside(directory, "first-tasks")  # Its first writer makes it.


def job_of(wanted: Wanted, device: str, at_once: int, first_tasks: Path | None) -> Job:
    """Write the settings of a run to its file; return a job, which goes on if the run had begun.

    Args:
        wanted: the run.
        device: device of the runs, "cpu" or "cuda".
        at_once: runs at a time, which share the cores.
        first_tasks: folder in which runs share the networks of first tasks; ``None``: they do not.
    """
    write_text(wanted.settings, dump_settings(with_threads(wanted.cell.settings, device)))
    options = {"--out": wanted.place}
    if first_tasks is not None:
        options["--first-tasks"] = first_tasks
    flags = ("--resume", "--no-report", "--with-parent")
    return Job(
        cell=wanted.cell,
        command=run_command(wanted.settings, options, *flags),
        log=wanted.log,
        num_tasks=partial(num_tasks, wanted.place),
        first_task=None if first_tasks is None else first_tasks / wanted.first_task,
        environment=run_environment(at_once),
        lock=wanted.place / "lock",
    )


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
