"""``grace study``, ``grace compare`` and ``grace report``: tables, figures and claims of runs."""

import re
import shlex
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from grace.base.errors import GraceError
from grace.base.words import counted
from grace.cli import options
from grace.cli.console import emit, emit_json, say
from grace.cli.progress import StudyProgress
from grace.cli.show import aligned
from grace.runs.record import read_records
from grace.studies import study as studies
from grace.studies.claims import judge_claims
from grace.studies.on_ray import ray_workers
from grace.studies.plan import Plan, Selection, scale_name
from grace.studies.report import write_report
from grace.studies.results import StudyResult, compared
from grace.studies.schema import list_studies, load_study
from grace.studies.table import claims_table, numbers_csv, study_tables
from grace.studies.workers import workers_here

_HABITUAL = (Path("comparisons"), Path("runs"))
"""Where ``grace compare`` and ``grace run`` put their runs: they are looked through too."""
_SHOWN = ("name", "headings", "rows", "notes")
"""What programs get of a table."""
_Jobs = Annotated[
    int | None,
    options.option(min=1, help="Runs at a time. Default: what cores, memory and GPUs allow."),
]


def study(
    arguments: Annotated[
        list[str] | None,
        options.argument(
            metavar="NAME|KEY=VALUE",
            help="A packaged study or a YAML file, then settings for every run. Without a name: "
            "list the studies.",
        ),
    ] = None,
    scale: Annotated[
        str, options.option(help="small or published. Default: small if the study has it.")
    ] = "",
    protocols: Annotated[str, options.option(help="Comma-separated. Default: all.")] = "",
    rows: Annotated[str, options.option(help="Comma-separated. Default: all.")] = "",
    seeds: Annotated[str, options.option(help="1,2,3 or 1-3. Default: the scale's.")] = "",
    jobs: _Jobs = None,
    out: Annotated[
        Path, typer.Option(file_okay=False, help="Folder of all studies, which share their runs.")
    ] = Path("studies"),
    runs: Annotated[
        list[Path] | None,
        options.option(
            exists=True,
            file_okay=False,
            help="Another folder in which to look for finished runs; repeatable.",
        ),
    ] = None,
    ray: Annotated[
        str,
        options.option(metavar="ADDRESS", help="Ray cluster with this folder: auto, or HOST:PORT."),
    ] = "",
    plan: Annotated[
        bool, typer.Option("--plan", help="Only tell what is done and what is left.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Make a table or figure of the paper: its runs, its numbers beside ours, its claims.

    Interrupted at any moment, the same command goes on where it stopped.
    """
    name, overrides = options.split(arguments or (), "study", "")
    if not name:
        known = list_studies()
        emit_json(known) if as_json else say(*aligned(list(known.items())))
        return
    texts = (options.words(protocols), options.words(rows))
    selection = Selection(scale, *texts, tuple(_numbers(seeds)) if seeds else (), tuple(overrides))
    others = [*(runs or ()), *(folder for folder in _HABITUAL if folder.is_dir())]
    planned = Plan(load_study(name), selection, [out / "runs", *others])
    if plan:
        _show_plan(planned, as_json=as_json)
        return
    workers = partial(partial(ray_workers, ray) if ray else workers_here, at_once=jobs)
    _make(partial(studies.make_study, planned, out, workers=workers), as_json=as_json)


def compare(
    arguments: Annotated[
        list[str] | None,
        options.argument(
            metavar="EXPERIMENT|KEY=VALUE",
            help="A packaged experiment or a YAML file (default: digits), then settings for every "
            "run. A method's own are those of its preset: methods.der.grow.epochs=10.",
        ),
    ] = None,
    methods: Annotated[str, options.option(help="Methods, comma-separated. Default: all.")] = "",
    seeds: Annotated[str, typer.Option(help="Seeds: 1,2,3 or 1-3.")] = "1-3",
    jobs: _Jobs = None,
    out: Annotated[
        Path | None,
        options.option(
            help="Directory of the results; an interrupted comparison in it is continued. "
            "Default: comparisons/EXPERIMENT."
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Run one experiment with many methods and seeds; write tables and a report.

    Interrupted at any moment, the same command goes on where it stopped.
    """
    chosen = {"methods": options.words(methods), "seeds": _numbers(seeds), "directory": out}
    workers = partial(workers_here, at_once=jobs)
    experiment, overrides = options.split(arguments or ())
    make = partial(studies.compare, experiment, overrides, **chosen, workers=workers)  # type: ignore[arg-type]
    _make(make, as_json=as_json)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run directories, or folders of run directories."),
    ],
    output: Annotated[
        Path | None,
        options.option(
            "--output",
            "--out",
            "-o",
            help="File of the page (default: report.html). With --table the page is only "
            "written if this is given.",
        ),
    ] = None,
    table: Annotated[
        Literal["csv", "latex"] | None,
        options.option(help="Print the comparison table in this format."),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Compare runs: one self-contained HTML page, or a table to paste."""
    records, left_out = read_records(runs, num_whole=1)
    for line in left_out:
        say(f"warning: left out: {line}", err=True)
    result = compared(records)
    if table == "csv":
        emit(numbers_csv(result))
    elif table == "latex":
        emit("\n".join(shown.to_latex() for shown in study_tables(result)))
    else:
        _show(result, as_json=as_json)
    if table is None or output is not None:
        path = write_report(records, output or Path("report.html"))
        what = f"report of {counted(len(records), 'run')}: {path}"
        say(what, err=table is not None or as_json)


def _make(make: Callable[..., StudyResult], *, as_json: bool) -> None:
    """Make a study, show its result, and exit with 1 if a run failed."""
    with _ended_like_ctrl_c():
        with StudyProgress() as progress:
            result = make(watcher=progress, command=shlex.join(["grace", *sys.argv[1:]]))
        _show(result, as_json=as_json)
        if result.failures:
            raise typer.Exit(1)


@contextmanager
def _ended_like_ctrl_c() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that the runs are stopped too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _numbers(text: str) -> list[int]:
    """Read a list of seeds and ranges: "1,2,5", "1-3" or "1-3,7"."""
    found_numbers: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if not first <= last < first + 1000:
            raise GraceError(
                f"--seeds {text!r}", "write seeds as 1,2,3 or 1-3, a range of at most 1000"
            )
        found_numbers += range(first, last + 1)
    return found_numbers


def _show_plan(plan: Plan, *, as_json: bool) -> None:
    """Print a line for each row and protocol with the state of its cells, then the sums."""
    if as_json:
        states = {run.name: plan.state(run) for run in plan.runs}
        emit_json({"study": plan.study.name, "runs": states})
        return
    groups = defaultdict(list)
    for cell in plan.cells:
        groups[cell.protocol, cell.row].append(cell)
    lines = [["protocol", "row", "seeds", "state"]]
    for (protocol, row), cells in groups.items():
        counts = Counter(plan.state(cell.run) for cell in cells)
        state = ", ".join(f"{count} {name}" for name, count in counts.items())
        lines.append([protocol, row, ",".join(str(cell.seed) for cell in cells), state])
    say(f"{plan.study.name}, scale {scale_name(plan.study, plan.selection.scale)}")
    say(*aligned(lines))
    to_make = {*plan.runs} - plan.found.keys()
    if more := len(to_make - {cell.run for cell in plan.cells}):
        say(f"and {counted(more, 'run')} that these need")
    total = len(plan.runs)
    say(f"{counted(total, 'run')}: {total - len(to_make)} done, {len(to_make)} to make")
    if unlike := sum(plan.state(run) == "made differently" for run in plan.left):
        say(f"{unlike} of them were made with other versions, and will be made again")


def _show(result: StudyResult, *, as_json: bool) -> None:
    """Print the tables, claims, notes, failures and paths of a study."""
    claims = judge_claims(result)
    tables = study_tables(result) if result.found else []
    if as_json:
        emit_json(
            {
                "study": result.study.name,
                "scale": result.at,
                "tables": [{key: getattr(table, key) for key in _SHOWN} for table in tables],
                "claims": {judged.claim.id: judged.verdict for judged in claims},
                "failures": dict(result.failures),
                "notes": list(result.notes),
                "files": [str(path) for path in result.files],
            }
        )
        return
    for table in [*tables, *([claims_table(claims)] if claims else [])]:
        sides = "<" * table.num_names + ">" * (len(table.headings) - table.num_names)
        say(table.name, *aligned([table.headings, *table.rows], sides), *table.notes, "")
    say(*studies.notes_of(result))
    say(*(str(path) for path in result.files if path.suffix in (".html", ".csv")))
