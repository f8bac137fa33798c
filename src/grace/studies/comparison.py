"""A comparison: the same experiment with every method and seed, in one directory.

Layout::

    cells/<method>-s<seed>.yaml    settings of each run, which 'grace run' takes as they are
    runs/<method>-s<seed>/         its record
    logs/<method>-s<seed>.txt      what it printed
    first-tasks/<fingerprint>/     networks of first tasks, shared by all runs that train them alike
    table.md, table.csv, table.tex, summary.md, report.html
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from grace.configs.load import dump_settings
from grace.record import RunRecord, read_record
from grace.storage.atomic import write_text
from grace.storage.lock import exclusive
from grace.studies.cells import Cell
from grace.studies.pool import Job, Watcher, carry_out, jobs_at_once, run_command
from grace.studies.report import write_report
from grace.studies.summary import summarise
from grace.studies.tables import comparison_table, to_csv, to_latex, to_markdown


@final
@dataclass(frozen=True)
class Comparison:
    """What came of a comparison.

    Args:
        records: of the runs that finished, in the order of the cells.
        failures: by the names of the cells that failed, why.
        files: what was written about all of them; none if no run finished.
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
) -> Comparison:
    """Carry out the cells that are not finished yet, and write tables and a report about all.

    Args:
        cells: at least one.
        directory: made if need be; an earlier comparison there goes on if it is the same one.
            Cells may have been added.
        watcher: told what happens.
        at_once: runs at a time; none takes what cores and memory allow.
        shares_first_task: whether methods that train their first task alike train it once.
        command: that the summary shall name.

    Returns:
        The finished records, the failures, and the files that tell of them.

    Raises:
        ValueError: for data or settings that no run could use, or a directory that holds another
            comparison.
        BusyError: if another process carries it out.
    """
    from grace.experiment import identify

    identities = identify([cell.settings for cell in cells])
    _refuse_occupied(directory)
    directory.mkdir(parents=True, exist_ok=True)
    with exclusive(directory / "lock", f"the comparison '{directory}'"):
        left = [
            (cell, identity)
            for cell, identity in zip(cells, identities, strict=True)
            if not _is_finished(_place(directory, cell), identity)
        ]
        for folder in ("cells", "runs", "logs"):
            (directory / folder).mkdir(exist_ok=True)
        jobs = [_job(directory, *one, shares=shares_first_task) for one in left]
        failures = carry_out(jobs, at_once or _at_once(cells), watcher)
        found = [_place(directory, cell) for cell in cells]
        records = [read_record(place) for place in found if (place / "run.json").exists()]
        finished = tuple(record for record in records if record.complete)
        files = _write(directory, finished, command) if finished else ()
    return Comparison(finished, failures, files)


def _place(directory: Path, cell: Cell) -> Path:
    return directory / "runs" / cell.name


def _refuse_occupied(directory: Path) -> None:
    """Refuse a directory of something else: nothing in it shall be written over."""
    if not directory.exists():
        return
    known = directory.is_dir() and (directory / "lock").exists() and (directory / "runs").is_dir()
    if not known and (not directory.is_dir() or any(directory.iterdir())):
        raise ValueError(
            f"{directory} holds something other than a comparison: choose another --out"
        )


def _is_finished(place: Path, identity: Mapping[str, str]) -> bool:
    if not (place / "run.json").exists():
        return False
    record = read_record(place)
    if record.info.fingerprints.get("run") != identity["run"]:
        raise ValueError(
            f"{place} holds a run with other settings, data or versions: choose another --out for "
            "this comparison, or remove that run"
        )
    return record.complete


def _at_once(cells: Sequence[Cell]) -> int:
    import torch

    engine = cells[0].settings.engine
    is_gpu = engine.device == "cuda" or (engine.device == "auto" and torch.cuda.is_available())
    return jobs_at_once(engine.threads, "cuda" if is_gpu else "cpu")


def _job(directory: Path, cell: Cell, identity: Mapping[str, str], *, shares: bool) -> Job:
    settings = directory / "cells" / f"{cell.name}.yaml"
    write_text(settings, dump_settings(cell.settings))
    place, common = _place(directory, cell), directory / "first-tasks"
    options = {"--out": place, **({"--first-tasks": common} if shares else {})}
    return Job(
        cell=cell,
        command=run_command(settings, options, "--resume", "--no-report"),
        log=directory / "logs" / f"{cell.name}.txt",
        num_tasks=lambda: _num_tasks(place),
        first_task=common / identity["first_task"] if shares else None,
    )


def _write(directory: Path, records: Sequence[RunRecord], command: str) -> tuple[Path, ...]:
    table = comparison_table(records)
    texts = {
        "summary.md": summarise(records, command),
        "table.md": to_markdown(table),
        "table.csv": to_csv(table),
        "table.tex": to_latex(table),
    }
    for name, text in texts.items():
        write_text(directory / name, text)
    report = write_report(records, directory / "report.html")
    return (report, *(directory / name for name in texts))


def _num_tasks(place: Path) -> int:
    try:
        return (place / "tasks.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0
