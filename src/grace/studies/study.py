"""Make a study: all its runs, then its tables, claims, figures and page.

Layout::

    OUT/runs/<run fingerprint>/      records, shared by all studies; each run locks its own folder
    OUT/cells/, OUT/logs/            settings and output of each run, by the same fingerprint
    OUT/first-tasks/<fingerprint>/   networks of first tasks, shared by the runs that begin alike
    OUT/<study>/                     table.csv, table.tex, claims.csv, figures/*.svg, report.html
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from grace.base.atomic import write_text
from grace.base.errors import BusyError, GraceError
from grace.base.files import inside, refuse_path
from grace.base.lock import exclusive
from grace.base.words import counted, in_seconds
from grace.runs.model import RunRecord
from grace.runs.record import tidy
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import load_experiment
from grace.settings.registry import METHODS, why_unknown
from grace.studies.cells import Selection, study_cells
from grace.studies.claims import judge_claims
from grace.studies.figures import study_figures
from grace.studies.plan import Plan, Records
from grace.studies.report import report_page, write_page
from grace.studies.results import Results, StudyResult
from grace.studies.schema import (
    ProtocolSettings,
    RowSettings,
    ScaleSettings,
    StudySettings,
)
from grace.studies.table import claims_csv, claims_table, numbers_csv, study_tables
from grace.studies.workers import Unwatched, Watcher, Worker, carry_out, workers_here

_WAIT = 60.0
"""Seconds that a process waits while another one writes the same tables."""

Workers = Callable[[ExperimentSettings], Sequence[Worker]]
"""Returns workers for runs with such settings."""


def plan_study(
    study: StudySettings, selection: Selection, out: Path, others: Sequence[Path] = ()
) -> Plan:
    """Tell what a study needs and what is there, without images and without torch.

    Args:
        study: the study.
        selection: the part of it.
        out: folder of all studies; it need not exist.
        others: further folders of runs, which are only read.

    Raises:
        GraceError: for names or settings that are wrong.
    """
    return Plan(study_cells(study, selection), Records([out / "runs", *others]))


def study_of_records(
    study: StudySettings, selection: Selection, folders: Sequence[Path]
) -> StudyResult:
    """Return a study from the records in some folders, whatever versions made them.

    Published tables are made again so, without training.
    """
    plan = Plan(study_cells(study, selection), Records(folders), any_version=True)
    return StudyResult(study, selection, plan.cells, plan.found, {})


def make_study(
    study: StudySettings,
    selection: Selection,
    out: Path,
    watcher: Watcher | None = None,
    *,
    others: Sequence[Path] = (),
    workers: Workers = workers_here,
    command: str = "",
    folder: Path | None = None,
) -> StudyResult:
    """Make the runs of a study that are not there; write its tables, claims and figures.

    They are also written after an interruption; the same call then goes on. Several processes, on
    any machines that share the folder, can make one study together: each takes the runs that
    nobody has taken.

    Args:
        study: the study.
        selection: the part of it.
        out: folder of all studies; created if it does not exist.
        watcher: receives the events of the runs.
        others: further folders of runs, which are only read.
        workers: returns the workers that carry out the runs.
        command: command line to name on the page.
        folder: of the tables; ``None``: the study's own, below ``out``.

    Raises:
        GraceError: for settings, data or a folder that cannot be used; nothing is created then.

    Warns:
        GraceWarning: if runs are made again because their images or versions are not the same.
    """
    plan = plan_study(study, selection, out, others)
    refuse_path(study.name, "the study's name")
    plan.compare_images()
    try:
        if plan.left:
            found = workers(next(iter(plan.left.values())))
            carry_out(plan, out, found, watcher or Unwatched())
        plan.name_missing()
    finally:
        for one in plan.found.values():
            if one.record.directory.parent == out / "runs":
                tidy(one.record.directory)
        failures = {plan.names[run]: why for run, why in plan.failures.items()}
        notes = tuple(plan.notes)
        made = StudyResult(study, selection, plan.cells, plan.found, failures, notes)
        if made.found:
            place = folder or inside(out, study.name)
            made = replace(made, files=write_study(made, place, command))
    return made


def write_study(made: StudyResult, folder: Path, command: str = "") -> tuple[Path, ...]:
    """Write all files of a study into a folder, the page first; earlier ones are replaced."""
    results = Results(made)
    tables, claims, drawn = study_tables(results), judge_claims(results), study_figures(results)
    texts = {
        "table.csv": numbers_csv(results),
        "table.tex": "\n".join(table.to_latex() for table in tables),
        **({"claims.csv": claims_csv(claims)} if claims else {}),
    }
    page = report_page(
        made.records,
        made.study.heading,
        [*([command] if command else []), *provenance(made.records), *notes_of(made)],
        [*tables, *([claims_table(claims)] if claims else [])],
        drawn,
    )
    inside(folder, "figures")
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder / "lock", f"the folder '{folder}'"):
        paths = [write_page(folder / "report.html", page)]
        for name, text in texts.items():
            write_text(folder / name, text)
            paths.append(folder / name)
        inside(folder, "figures").mkdir(exist_ok=True)
        for name, svg in drawn.items():
            paths.append(inside(folder, "figures", f"{name}.svg"))
            write_text(paths[-1], svg)
    return tuple(paths)


@contextmanager
def _alone(lock: Path, what: str) -> Iterator[None]:
    """Hold a lock; wait for another process that writes the same files."""
    until = time.monotonic() + _WAIT
    while True:
        try:
            with exclusive(lock, what):
                yield
                lock.unlink()
                return
        except BusyError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def notes_of(made: StudyResult) -> list[str]:
    """List what a reader must know: notes of the study and its runs, and what failed."""
    notes = dict.fromkeys(note for record in made.records for note in record.info.notes)
    names = ("cpu", "gpu", "threads", "processes")
    machines = {tuple(r.info.hardware.get(name) for name in names) for r in made.records}
    if len(machines) > 1:
        notes[
            "the runs were made on unlike machines, which round differently: with equal seeds they "
            "differ as much as with other seeds"
        ] = None
    return [*made.notes, *notes, *(f"{name} failed: {why}" for name, why in made.failures.items())]


def provenance(records: Sequence[RunRecord]) -> list[str]:
    """List work, dates, versions and machines of the runs; different values are all named."""
    infos = [record.info for record in records]
    days = sorted({info.started[:10] for info in infos})
    seconds = sum(record.seconds for record in records)
    facts = {
        "work": f"{counted(len(records), 'run')}, {in_seconds(seconds)}",
        "date": " to ".join(dict.fromkeys((days[0], days[-1]))),
        "commit": "; ".join(dict.fromkeys(info.commit or "unknown" for info in infos)),
        **{
            name: "; ".join(dict.fromkeys(str(info.versions.get(name)) for info in infos))
            for name in ("torch", "python")
        },
        "hardware": "; ".join(dict.fromkeys(map(_hardware, records))),
    }
    return [f"{name}: {value}" for name, value in facts.items()]


def _hardware(record: RunRecord) -> str:
    known = record.info.hardware
    machine = known.get("gpu") or known.get("cpu") or "unknown"
    threads = known.get("threads")
    in_words = "1 thread" if threads == 1 else f"{threads} threads"
    return f"{machine}, {known.get('cores')} cores, {in_words} a run"


def compare(
    experiment: str = "digits",
    overrides: Sequence[str] = (),
    *,
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (1, 2, 3),
    directory: str | Path | None = None,
    watcher: Watcher | None = None,
    workers: Workers = workers_here,
    command: str = "",
) -> StudyResult:
    """Run one experiment with several methods and seeds; write tables and a report.

    After an interruption at any moment, the same call continues where it stopped.

    Args:
        experiment: a packaged experiment, or the path of a YAML file; each method takes its preset
            from it.
        overrides: ``key.path=value`` texts for every run; ``methods.der.grow.epochs=10`` changes
            the preset of one method.
        methods: names of the methods; empty: all.
        seeds: one run per seed and method; a seed sets all four seeds of a run.
        directory: of runs and tables; ``None``: ``comparisons/<experiment>``.
        watcher: receives the events of the runs.
        workers: returns the workers that carry out the runs.
        command: command line to name on the page.

    Raises:
        GraceError: for unknown or repeated methods or seeds, data or settings that no run can use,
            or a directory that holds something else.
    """
    study = study_of(experiment, methods, seeds)
    folder = Path(directory) if directory else Path("comparisons", study.name)
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    if names and "runs" not in names:
        raise GraceError(
            f"{folder} holds files that are not of a comparison", "choose another directory"
        )
    chosen = Selection(seeds=tuple(seeds), overrides=tuple(overrides))
    return make_study(
        study, chosen, folder, watcher, workers=workers, command=command, folder=folder
    )


def study_of(experiment: str, methods: Sequence[str], seeds: Sequence[int]) -> StudySettings:
    """Return a comparison as a study with one protocol and a row for each method."""
    chosen = list(methods) or list(METHODS)
    for name in chosen:
        if not name:
            raise GraceError("a method's name is empty", "name methods as grace,der")
        if name not in METHODS:
            raise GraceError(why_unknown(name))
        if chosen.count(name) > 1:
            raise GraceError(f"method {name} is given twice", "name it once")
    if not seeds:
        raise GraceError("a comparison needs at least one seed", "give seeds such as 1,2,3")
    name = refuse_path(load_experiment(experiment).name, "the experiment's name")
    scale = ScaleSettings(
        protocols={name: ProtocolSettings(experiment=experiment)}, seeds=tuple(dict.fromkeys(seeds))
    )
    return StudySettings(
        name=name,
        title=f"Comparison: {name}",
        scales={"comparison": scale},
        rows={method: RowSettings(method=method) for method in chosen},
        columns=("last", "average", "forgetting", "backbones", "parameters", "seconds"),
        figures=("accuracy", "backbones"),
    )
