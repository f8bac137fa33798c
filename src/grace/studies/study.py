"""Make a study: all its runs, then its tables, claims, figures and page.

Layout::

    OUT/runs/<run fingerprint>/      records, shared by all studies; each run locks its own folder
    OUT/cells/, OUT/logs/            settings and output of each run, by the same fingerprint
    OUT/first-tasks/<fingerprint>/   networks of first tasks, shared by the runs that begin alike
    OUT/<study>/                     table.csv, table.tex, claims.csv, figures/*.svg, report.html
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from grace.base.atomic import write_text
from grace.base.errors import GraceError
from grace.base.files import inside, refuse_path
from grace.base.lock import exclusive
from grace.base.words import in_seconds
from grace.runs.model import RunRecord
from grace.runs.record import tidy
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import load_experiment
from grace.settings.registry import METHODS
from grace.studies.claims import judge_claims
from grace.studies.figures import study_figures
from grace.studies.plan import Plan, Selection
from grace.studies.report import report_page, write_page
from grace.studies.results import StudyResult
from grace.studies.schema import study_from
from grace.studies.table import claims_csv, claims_table, numbers_csv, study_tables
from grace.studies.workers import Unwatched, Watcher, Worker, carry_out, workers_here

_NUM_TRIES = 6000
"""How often a process tries to write tables, for a minute, while another one writes them."""

Workers = Callable[[ExperimentSettings], Sequence[Worker]]
"""Returns workers for runs with such settings."""


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

    It is a study of one protocol with a row for each method. After an interruption at any moment,
    the same call continues where it stopped.

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
        GraceError: for unknown methods, data or settings that no run can use, or a directory that
            holds something else.
    """
    name = refuse_path(load_experiment(experiment).name, "the experiment's name")
    folder = Path(directory) if directory else Path("comparisons", name)
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set[str]()
    if names and "runs" not in names:
        raise GraceError(
            f"{folder} holds files that are not of a comparison", "choose another directory"
        )
    study = study_from(
        {
            "name": name,
            "title": f"Comparison: {name}",
            "scales": {"comparison": {"protocols": {name: experiment}}},
            "rows": {method: {"method": method} for method in methods or METHODS},
            "columns": ("last", "average", "forgetting", "backbones", "parameters", "seconds"),
        },
        "comparison",
    )
    chosen = Selection(seeds=tuple(seeds), overrides=tuple(overrides))
    plan = Plan(study, chosen, [folder / "runs"])
    return make_study(plan, folder, watcher, workers=workers, command=command, folder=folder)


def make_study(
    plan: Plan,
    out: Path,
    watcher: Watcher | None = None,
    *,
    workers: Workers = workers_here,
    command: str = "",
    folder: Path | None = None,
) -> StudyResult:
    """Make the runs of a study that are not there; write its tables, claims and figures.

    They are also written after an interruption; the same call then goes on. Several processes, on
    any machines that share the folder, can make one study together: each takes the runs that
    nobody has taken.

    Args:
        plan: of the study, made with the runs in ``out``.
        out: folder of all studies; created if it does not exist.
        watcher: receives the events of the runs.
        workers: returns the workers that carry out the runs.
        command: command line to name on the page.
        folder: of the tables; ``None``: the study's own, below ``out``.

    Raises:
        GraceError: for settings, data or a folder that cannot be used; nothing is created then.

    Warns:
        GraceWarning: if runs are made again because their images or versions are not the same.
    """
    place = folder or out / refuse_path(plan.study.name, "the study's name")
    plan.compare_images()
    try:
        if plan.left:
            found = workers(next(iter(plan.left.values())))
            carry_out(plan, out, found, watcher or Unwatched())
        plan.name_missing()
    finally:
        for one in plan.found.values():
            if one.record.directory.absolute().parent == (out / "runs").absolute():
                tidy(one.record.directory)
        made = StudyResult.of(plan)
        if made.found:
            made = replace(made, files=write_study(made, place, command))
    return made


def write_study(result: StudyResult, folder: Path, command: str = "") -> tuple[Path, ...]:
    """Write all files of a study into a folder, the page first; earlier ones are replaced."""
    tables, claims = study_tables(result), judge_claims(result)
    figures = study_figures(result)
    texts = {
        "table.csv": numbers_csv(result),
        "table.tex": "\n".join(table.to_latex() for table in tables),
        **({"claims.csv": claims_csv(claims)} if claims else {}),
        **{f"figures/{name}.svg": svg for name, svg in figures.items()},
    }
    page = report_page(
        result.records,
        result.study.title or result.study.name,
        [*([command] if command else []), *_origin(result.records), *notes_of(result)],
        [*tables, *([claims_table(claims)] if claims else [])],
        figures,
    )
    inside(folder, "figures").mkdir(parents=True, exist_ok=True)
    with exclusive(folder / "lock", f"the folder '{folder}'", _NUM_TRIES):
        write_page(folder / "report.html", page)
        for name, text in texts.items():
            write_text(inside(folder, *name.split("/")), text)
        (folder / "lock").unlink()
    return tuple(folder / name for name in ("report.html", *texts))


def notes_of(result: StudyResult) -> list[str]:
    """List what a reader must know: notes of the study and its runs, and what failed."""
    notes = dict.fromkeys(note for record in result.records for note in record.info.notes)
    failures = (f"{name} failed: {why}" for name, why in result.failures.items())
    return [*result.notes, *notes, *failures]


def _origin(records: Sequence[RunRecord]) -> list[str]:
    """List time, dates, versions and machines of the runs; different values are all named."""
    infos = [record.info for record in records]
    facts: dict[str, Sequence[object]] = {
        "time": [in_seconds(sum(record.seconds for record in records))],
        "dates": sorted(info.started[:10] for info in infos),
        "commit": [info.commit for info in infos],
        **{key: [info.versions.get(key) for info in infos] for key in ("torch", "python")},
        **{key: [info.hardware.get(key) for info in infos] for key in ("gpu", "cpu", "threads")},
    }
    return [
        f"{name}: {'; '.join(dict.fromkeys(map(str, values)))}" for name, values in facts.items()
    ]
