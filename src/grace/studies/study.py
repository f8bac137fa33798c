"""Plan and make a study: all its runs, then its tables, claims and figures.

Layout::

    OUT/runs/<run fingerprint>/      records, shared by all studies
    OUT/cells/, OUT/logs/            settings and output of each run, by the same fingerprint
    OUT/first-tasks/<fingerprint>/   networks of first tasks, shared by the runs that begin alike
    OUT/taken/                       which task of an array job makes which run
    OUT/<study>/                     plan, tables, claims, figures and page of one study
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from grace.base.errors import BusyError, GraceError
from grace.base.files import inside, refuse_path
from grace.base.lock import exclusive, shared
from grace.settings.study import StudySettings
from grace.studies.made_study import MadeStudy
from grace.studies.making import make_folders
from grace.studies.pool import Machines, Unwatched, Watcher, carry_out
from grace.studies.reservations import Reservations
from grace.studies.search import Search, SearchSettings, search_name
from grace.studies.slurm import submit
from grace.studies.study_cells import Selection, StudyCell, study_cells
from grace.studies.study_files import write_study
from grace.studies.study_runs import StudyRuns
from grace.studies.this_machine import ThisMachine

_WAIT = 60.0
"""Seconds that a task of an array job waits while another one writes the tables."""


def make_study(
    study: StudySettings,
    selection: Selection,
    out: Path,
    watcher: Watcher,
    *,
    others: Sequence[Path] = (),
    at_once: int | None = None,
    command: str = "",
    machines: Machines | None = None,
    array: str | None = None,
    search: SearchSettings | None = None,
) -> MadeStudy:
    """Make the runs of a study that are not there; write its tables, claims and figures.

    They are also written after an interruption; the same call then goes on.

    Args:
        study: the study.
        selection: the part of it.
        out: folder of all studies; created if it does not exist.
        watcher: receives the events of the runs.
        others: further folders of runs; a run found there is copied, and nothing there is changed.
        at_once: runs at a time; ``None``: as many as the machines allow.
        command: command line to name in the summary.
        machines: where the runs are carried out; ``None``: on this machine.
        array: id of the array job of which this process is a task; the last one to end writes the
            tables. ``None``: it is none.
        search: looks for pairs of threshold and decay; ``None``: the study's rows are made.

    Returns:
        The study with its records.

    Raises:
        GraceError: for settings, data or a folder that cannot be used; no empty folder stays.
        BusyError: if another process makes runs in the same folder.

    Warns:
        GraceWarning: if runs are made again because their images or versions are not the same.
    """
    cells = [] if search else study_cells(study, selection)
    is_new, name = not out.exists(), search_name(study) if search else study.name
    directory = study_folder(out, name)
    what, is_task = f"the folder of studies '{out}'", array is not None
    lock = shared(out / "lock", what, _WAIT) if is_task else exclusive(out / "lock", what)
    with lock, _nothing_left(out, directory, is_new=is_new):
        if not is_task:
            make_folders(out)
        reservations = None if array is None else Reservations(out, array)
        seeks = Search(study, selection, search, directory) if search else None
        runs = StudyRuns(cells, out, others, watcher, reservations, seeks)
        try:
            _carry_out(runs, machines or ThisMachine(), at_once, watcher)
        finally:
            made = _made(study, selection, cells, runs, seeks, directory)
            if runs.found and not is_task:
                write_study(made, command)
    if is_task:
        with suppress(BusyError), exclusive(out / "lock", what):  # The last task can have it.
            runs.look_elsewhere()  # Others may have ended meanwhile.
            runs.name_missing()
            made = _made(study, selection, cells, runs, seeks, directory)
            if runs.found:
                write_study(made, command)
    return made


def _made(
    study: StudySettings,
    selection: Selection,
    cells: Sequence[StudyCell],
    runs: StudyRuns,
    search: Search | None,
    directory: Path,
) -> MadeStudy:
    """Return what was made, with the cells that a search chose."""
    notes = tuple(runs.notes)
    if search is not None:
        study, selection, cells = search.study, search.selection, search.cells
        notes = (*notes, search.note)
    return MadeStudy(
        study, selection, tuple(cells), runs.found, runs.failures, notes, directory, runs.at_once
    )


def submit_study(
    study: StudySettings,
    selection: Selection,
    out: Path,
    *,
    others: Sequence[Path] = (),
    most_tasks: int | None = None,
    arguments: Sequence[str],
    options: Sequence[str],
) -> tuple[str, int]:
    """Submit the runs of a study that are not there to Slurm, as one array job.

    Args:
        study: the study.
        selection: the part of it.
        out: folder of all studies, shared by the machines; created if it does not exist.
        others: further folders of runs.
        most_tasks: tasks of the array; ``None``: as many as runs.
        arguments: of ``grace``, for each task.
        options: for ``sbatch``.

    Returns:
        The id of the job, and its number of tasks; an empty id if there is nothing to make.

    Raises:
        GraceError: for settings or data that no run can use, or if ``sbatch`` refuses.
        BusyError: if another process makes runs in the same folder.
    """
    cells = study_cells(study, selection)
    is_new, directory = not out.exists(), study_folder(out, study.name)
    lock = exclusive(out / "lock", f"the folder of studies '{out}'")
    with lock, _nothing_left(out, directory, is_new=is_new):
        make_folders(out)
        runs = StudyRuns(cells, out, others, Unwatched())
        if not runs.num_left:
            return "", 0
        num_tasks = min(runs.num_left, most_tasks or runs.num_left)
        return submit(arguments, options, num_tasks, out, study.name), num_tasks


def study_folder(out: Path, name: str) -> Path:
    """Create the folder of a study, and return it."""
    directory = inside(out, refuse_path(name, "the study's name"))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextmanager
def _nothing_left(out: Path, directory: Path, *, is_new: bool) -> Iterator[None]:
    """After a refusal remove what was created for a study, up to the first folder in use.

    Args:
        out: folder of all studies; its lock is held.
        directory: folder of the study.
        is_new: ``out`` was created for it.
    """
    try:
        yield
    except (GraceError, OSError):
        with suppress(OSError):  # A folder in use stays, and so do those that come after it.
            for folder in (directory, *(out / name for name in ("runs", "cells", "logs"))):
                folder.rmdir()
            if is_new:
                (out / "lock").unlink()
                out.rmdir()
        raise


def _carry_out(runs: StudyRuns, machines: Machines, at_once: int | None, watcher: Watcher) -> None:
    """Make the runs that are left.

    Args:
        runs: the runs.
        machines: where they are made.
        at_once: runs at a time; ``None``: as many as the machines allow.
        watcher: receives the events.
    """
    if runs.left:
        first = next(iter(runs.left.values()))
        at_once = at_once or machines.at_once(first)
        runs.share(machines.device(first), at_once)
        seconds = machines.seconds_between
        carry_out(runs, at_once, watcher, start=machines.start, seconds_between=seconds)
    runs.name_missing()
