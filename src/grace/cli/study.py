"""``grace study``: the tables, figures and claims of the paper, or of a user's own study."""

import shlex
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from grace.base.errors import GraceError
from grace.base.words import counted, in_bytes, in_seconds
from grace.cli import options
from grace.cli.compare import ended_like_ctrl_c, numbers
from grace.cli.console import emit_json, say
from grace.cli.progress import StudyProgress
from grace.cli.report import show_result
from grace.cli.show import aligned
from grace.settings.load import ConfigWarning
from grace.studies.cells import Selection, scale_name
from grace.studies.on_ray import ray_workers
from grace.studies.plan import LeftOutWarning, Plan
from grace.studies.results import StudyResult
from grace.studies.schema import StudySettings, list_studies, load_study
from grace.studies.study import make_study, plan_study
from grace.studies.workers import workers_here

_HABITUAL = (Path("comparisons"), Path("runs"))
"""Where ``grace compare`` and ``grace run`` put their runs: they are looked through too."""


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
    jobs: Annotated[
        int | None,
        options.option(min=1, help="Runs at a time. Default: what cores, memory and GPUs allow."),
    ] = None,
    out: Annotated[
        Path, typer.Option(file_okay=False, help="Folder of all studies, which share their runs.")
    ] = Path("studies"),
    runs: Annotated[
        list[Path] | None,
        options.option(help="Another folder in which to look for finished runs; repeatable."),
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
    with ended_like_ctrl_c():
        name, overrides = options.split(arguments or (), "study", "")
        if not name:
            _list(as_json=as_json)
            return
        if plan and ray:
            raise GraceError("--ray has no effect on --plan, which makes no runs", "leave one out")
        texts = (options.words(protocols), options.words(rows))
        chosen_seeds = tuple(numbers(seeds)) if seeds else ()
        selection = Selection(scale, *texts, chosen_seeds, tuple(overrides))
        others = [*_folders(runs), *(folder for folder in _HABITUAL if folder.is_dir())]
        found = load_study(name)
        planned = plan_study(found, selection, out, others)
        if plan:
            _show_plan(found, selection, planned, as_json=as_json)
            return
        workers = partial(partial(ray_workers, ray) if ray else workers_here, at_once=jobs)
        make = partial(make_study, found, selection, out, others=others, workers=workers)
        _make(make, as_json=as_json)


def _make(make: Callable[..., StudyResult], *, as_json: bool) -> None:
    """Make a study, show its result, and exit with 1 if a run failed."""
    for told in (ConfigWarning, LeftOutWarning):  # By the plan.
        warnings.simplefilter("ignore", told)
    with StudyProgress() as progress:
        made = make(watcher=progress, command=shlex.join(["grace", *sys.argv[1:]]))
    show_result(made, as_json=as_json)
    if made.failures:
        raise typer.Exit(1)


def _folders(runs: Sequence[Path] | None) -> Sequence[Path]:
    """Return the folders of ``--runs``; refuse those that do not exist."""
    for folder in runs or ():
        if not folder.is_dir():
            what = "it is no folder" if folder.exists() else "there is no such folder"
            raise GraceError(f"--runs {folder}: {what}", "give a folder of runs")
    return runs or ()


def _list(*, as_json: bool) -> None:
    known = list_studies()
    if as_json:
        emit_json(known)
    else:
        say(*aligned(list(known.items())))


def _show_plan(study: StudySettings, selection: Selection, plan: Plan, *, as_json: bool) -> None:
    """Print a line for each row and protocol with the state of its cells, then the sums."""
    if as_json:
        states = {plan.names[run]: plan.state(run) for run in plan.runs}
        emit_json({"study": study.name, "runs": states})
        return
    say(f"{study.name}, scale {scale_name(study, selection.scale)}", *_plan_lines(plan))


def _plan_lines(plan: Plan) -> Iterator[str]:
    seconds = {run: plan.seconds(run) for run in plan.runs if run not in plan.found}
    groups: dict[tuple[str, str], list[int]] = {}
    for place, cell in enumerate(plan.cells):
        groups.setdefault((cell.protocol, cell.row), []).append(place)
    rows = [["protocol", "row", "seeds", "state", "time to come"]]
    for (protocol, row), places in groups.items():
        cells = [plan.cells[place] for place in places]
        counts = Counter(plan.state(cell.run) for cell in cells)
        state = ", ".join(f"{count} {name}" for name, count in counts.items())
        time = _time([seconds[cell.run] for cell in cells if cell.run in seconds])
        rows.append([protocol, row, ",".join(str(cell.seed) for cell in cells), state, time])
    yield from aligned(rows, "<<<<>")
    if more := len(seconds.keys() - {cell.run for cell in plan.cells}):
        yield f"and {counted(more, 'run')} that these need"
    left, total = len(seconds), len(plan.runs)
    size = in_bytes(left * plan.records.bytes_each)
    time = _time(list(seconds.values()))
    known = f"about {time} of work" if time != "?" else "an unknown time ('?': no finished run yet)"
    yield f"{counted(total, 'run')}: {total - left} done, {left} to make" + (
        f", {known}, {size} of records" if left else ""
    )
    if plan.unlike:
        yield f"{len(plan.unlike)} of them were made with other versions, and will be made again"


def _time(seconds: Sequence[float | None]) -> str:
    known = [value for value in seconds if value is not None]
    return "" if not seconds else in_seconds(sum(known)) if len(known) == len(seconds) else "?"
