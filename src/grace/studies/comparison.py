"""A comparison: the same experiment with every method and seed, in one directory.

Layout::

    cells/<method>-s<seed>.yaml    settings of each run, a file for 'grace run'
    runs/<method>-s<seed>/         record of each run
    logs/<method>-s<seed>.txt      output of each run
    first-tasks/<fingerprint>/     networks of first tasks, shared by the runs that begin alike
    table.md, table.csv, table.tex, summary.md, report.html
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

from grace.base.atomic import write_text
from grace.base.errors import GraceError
from grace.base.files import inside, refuse_path
from grace.base.lock import exclusive
from grace.runs import RunRecord
from grace.runs.resuming import tidy
from grace.runs.run import identify
from grace.settings.experiment import ExperimentSettings
from grace.studies.cells import Cell, cells_of, settings_of
from grace.studies.first_tasks import foreign_first_tasks
from grace.studies.making import Wanted, job_of, make_folders, read_runs
from grace.studies.pool import ListedJobs, Unwatched, Watcher, carry_out
from grace.studies.report import write_report
from grace.studies.summary import summarise
from grace.studies.tables import comparison_table, to_csv, to_latex, to_markdown
from grace.studies.this_machine import ThisMachine

_FILES = {
    "cells", "runs", "logs", "first-tasks", "lock",
    "table.md", "table.csv", "table.tex", "summary.md", "report.html",
}  # fmt: skip
"""Names of all files and folders that a comparison writes."""

_INCOMPLETE = GraceError("its record is not complete")


@final
@dataclass(frozen=True)
class Comparison:
    """The result of a comparison.

    Args:
        records: records of all finished runs of the directory.
        failures: reasons of the failed runs and of damaged records, by the name of the cell.
        files: tables, summary and report; empty if no run finished.
    """

    records: tuple[RunRecord, ...]
    failures: Mapping[str, str]
    files: tuple[Path, ...]


def compare(
    cells: Sequence[Cell],
    directory: Path,
    watcher: Watcher,
    *,
    at_once: int | None = None,
    shares_first_task: bool = True,
    command: str = "",
    settings_of: Callable[[str], ExperimentSettings] | None = None,
) -> Comparison:
    """Run the cells that are not finished; write tables and a report over the whole directory.

    The tables and the report are also written after an interruption.

    Args:
        cells: at least one.
        directory: created if it does not exist; an earlier comparison in it is continued. That may
            have other methods and seeds, but must have the same protocol.
        watcher: receives the events of the runs.
        at_once: runs at a time; ``None``: as many as cores and memory allow.
        shares_first_task: methods with the same first task train it once.
        command: command line to name in the summary.
        settings_of: returns the settings that a method would have in this comparison. A run of a
            method that has no cell may stand in the directory if its protocol is that of these
            settings: a preset may bring another backbone.

    Returns:
        The finished records, the failures, and the files that describe them.

    Raises:
        GraceError: for data or settings that no run can use, or another comparison's directory.
        BusyError: if another process works on the comparison.
    """
    _refuse_occupied(directory)
    identities = identify([cell.settings for cell in cells])
    places = {cell.name: _place(directory, cell) for cell in cells}
    directory.mkdir(parents=True, exist_ok=True)
    with exclusive(directory / "lock", f"the comparison '{directory}'"):
        make_folders(directory)
        found, damaged = read_runs(directory / "runs")
        _refuse_others(found, {identity["protocol"] for identity in identities}, settings_of)
        here = ThisMachine()
        device = here.device(cells[0].settings)
        jobs_here = at_once or here.at_once(cells[0].settings)
        left = [
            _wanted(directory, cell, identity)
            for cell, identity in zip(cells, identities, strict=True)
            if places[cell.name] not in damaged
            and not _is_finished(found.get(places[cell.name]), identity)
        ]
        common = directory / "first-tasks" if shares_first_task else None
        source = ListedJobs([job_of(run, device, jobs_here, common) for run in left])
        try:
            carry_out(source, jobs_here, watcher, start=here.start)
        finally:
            found, damaged = read_runs(directory / "runs")
            records = tuple(record for record in found.values() if record.complete)
            files = _write(directory, records, command, jobs_here) if records else ()
    return Comparison(records, _faults(places, records, damaged) | source.failures, files)


def _faults(
    places: Mapping[str, Path], records: Sequence[RunRecord], damaged: Mapping[Path, GraceError]
) -> dict[str, str]:
    """Say what is wrong with records: foreign first tasks, damaged and unfinished runs.

    Args:
        places: directories of the runs that were asked for, by the name of the cell.
        records: of all finished runs.
        damaged: errors of the other records.
    """
    foreign, finished = foreign_first_tasks(records), {record.directory for record in records}
    missing = {place: _INCOMPLETE for place in places.values() if place not in finished}
    taken = {name: foreign[place] for name, place in places.items() if place in foreign}
    left_out = {
        place.name: _with_remedy(place, why) for place, why in (missing | {**damaged}).items()
    }
    return taken | {name: str(error) for name, error in left_out.items()}


def compare_methods(
    experiment: str = "digits",
    overrides: Sequence[str] = (),
    *,
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (1, 2, 3),
    directory: str | Path | None = None,
    watcher: Watcher | None = None,
    at_once: int | None = None,
) -> Comparison:
    """Run one experiment with several methods and seeds; write tables and a report.

    After an interruption at any moment, the same call continues where it stopped.

    Args:
        experiment: a packaged experiment, or the path of a YAML file.
        overrides: ``key.path=value`` texts for every run; ``methods.der.grow.epochs=10`` changes
            the preset of one method.
        methods: names of the methods; empty: all.
        seeds: one run per seed and method; a seed sets all four seeds of a run.
        directory: directory of the results; ``None``: ``comparisons/<experiment>``.
        watcher: receives the events of the runs.
        at_once: runs at a time; ``None``: as many as cores and memory allow.

    Returns:
        The finished records, the failures, and the files that describe them.

    Raises:
        GraceError: for data or settings that no run can use, or a directory that holds something
            else.
    """
    cells = cells_of(experiment, overrides, methods, seeds)
    return compare(
        cells,
        default_directory(cells) if directory is None else Path(directory),
        watcher or Unwatched(),
        at_once=at_once,
        settings_of=partial(settings_of, experiment, overrides),
    )


def default_directory(cells: Sequence[Cell]) -> Path:
    """Name the directory of a comparison after its experiment.

    Raises:
        GraceError: if that name is a path.
    """
    return Path("comparisons", refuse_path(cells[0].settings.name, "the experiment's name"))


def _place(directory: Path, cell: Cell) -> Path:
    return inside(directory, "runs", cell.name)


def _wanted(directory: Path, cell: Cell, identity: Mapping[str, str]) -> Wanted:
    return Wanted(
        cell,
        _place(directory, cell),
        directory / "cells" / f"{cell.name}.yaml",
        directory / "logs" / f"{cell.name}.txt",
        identity["first_task"],
    )


def _refuse_occupied(directory: Path) -> None:
    """Refuse a directory that holds something else, so that nothing in it is overwritten."""
    if not directory.exists():
        return
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else {"no directory"}
    begun = names <= {"lock"}
    known = "lock" in names and (directory / "runs").is_dir()
    if not (begun or known or (names <= _FILES and _holds_runs(directory / "runs"))):
        raise GraceError(
            f"{directory} holds files that are not of a comparison", "choose another directory"
        )


def _holds_runs(folder: Path) -> bool:
    """Return True if a folder holds only records of runs, as a published archive does."""
    entries = list(folder.iterdir()) if folder.is_dir() else []
    return bool(entries) and all((entry / "run.json").is_file() for entry in entries)


def _refuse_others(
    found: Mapping[Path, RunRecord],
    protocols: Collection[str],
    settings_of: Callable[[str], ExperimentSettings] | None,
) -> None:
    """Refuse the directory if it has runs of another protocol."""
    others = {
        p: r for p, r in found.items() if r.info.fingerprints.get("protocol") not in protocols
    }
    allowed: dict[str, str] = {}
    if others and settings_of is not None:
        methods = sorted({record.method for record in others.values()})
        found_here = identify([settings_of(method) for method in methods])
        allowed = {m: identity["protocol"] for m, identity in zip(methods, found_here, strict=True)}
    for place, record in others.items():
        if record.info.fingerprints.get("protocol") != allowed.get(record.method):
            raise GraceError(
                f"{place} holds a run with other data, backbone or memory",
                "choose another directory for this comparison",
            )


def _is_finished(record: RunRecord | None, identity: Mapping[str, str]) -> bool:
    if record is None:
        return False
    if record.info.fingerprints.get("run") != identity["run"]:
        raise GraceError(
            f"{record.directory} holds a run with other settings, data or versions",
            "choose another directory for this comparison, or remove that run",
        )
    if record.complete:
        tidy(record.directory)
    return record.complete


def _with_remedy(place: Path, error: GraceError) -> GraceError:
    """Return the error of a record with the remedy to run it again."""
    return GraceError(error.what, f"remove {place} to run it again", where=error.where)


def _write(
    directory: Path, records: Sequence[RunRecord], command: str, at_once: int
) -> tuple[Path, ...]:
    table = comparison_table(records)
    texts = {
        "summary.md": summarise(records, command, at_once),
        "table.md": to_markdown(table),
        "table.csv": to_csv(table),
        "table.tex": to_latex(table),
    }
    for name, text in texts.items():
        write_text(directory / name, text)
    report = write_report(records, directory / "report.html")
    return (report, *(directory / name for name in texts))
