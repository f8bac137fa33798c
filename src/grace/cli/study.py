"""``grace study``: the tables, figures and claims of the paper, or of a user's own study."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from grace.cli import options
from grace.cli.compare import ended_like_ctrl_c, numbers
from grace.cli.comparison_progress import ComparisonProgress
from grace.cli.console import say
from grace.cli.errors import one_line_errors, one_line_warnings
from grace.cli.study_lines import plan_lines, result_lines
from grace.configs.study import StudySettings, list_studies, load_study
from grace.studies.ray_cluster import RayCluster
from grace.studies.search import SearchSettings
from grace.studies.slurm import sbatch_options
from grace.studies.study import make_study, submit_study
from grace.studies.study_cells import Selection
from grace.studies.study_plan import plan_study
from grace.studies.this_machine import ThisMachine
from grace.text.refusals import GraceError

REMEDIES = {"methods": "use --rows", "seeds": "use --seeds"}
"""What to do on the command line instead of setting a name."""

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
        options.option(min=1, help="Runs at a time. Default: as many as cores and memory allow."),
    ] = None,
    jobs_per_gpu: Annotated[
        int | None,
        options.option(
            min=1,
            help="Runs that share a GPU. Default: as many small ones as its memory allows, and one "
            "of images above 64 pixels.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of all studies, which share their runs.")
    ] = Path("studies"),
    runs: Annotated[
        list[Path] | None,
        options.option(help="Another folder in which to look for finished runs; repeatable."),
    ] = None,
    ray: Annotated[
        str,
        options.option(
            metavar="ADDRESS",
            help="Make the runs on a Ray cluster that shares the folder: auto, or HOST:PORT.",
        ),
    ] = "",
    slurm: Annotated[
        str | None,
        options.option(
            metavar="OPTIONS",
            help="Submit the runs to Slurm as one array job with these options of sbatch, such as "
            "'--partition=gpu --gres=gpu:1'; --jobs limits its tasks.",
        ),
    ] = None,
    search: Annotated[
        int | None,
        options.option(
            min=1,
            max=500,
            metavar="N",
            help="In place of the study's grid, let Optuna choose N pairs of threshold and decay "
            "for each protocol.",
        ),
    ] = None,
    storage: Annotated[
        str,
        options.option(
            metavar="URL", help="Database of the search. Default: a journal in its folder."
        ),
    ] = "",
    array_task: Annotated[bool, typer.Option("--array-task", hidden=True)] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only tell what is done and what is left.")
    ] = False,
) -> None:
    """Make a table or figure of the paper: its runs, its numbers beside ours, its claims.

    Interrupted at any moment, the same command goes on where it stopped.
    """
    with one_line_errors(REMEDIES), ended_like_ctrl_c():
        name, overrides = _split(arguments or ())
        if not name:
            _list()
            return
        chosen_seeds = tuple(numbers(seeds)) if seeds else ()
        selection = Selection(scale, _words(protocols), _words(rows), chosen_seeds, overrides)
        others = [*(runs or ()), *(folder for folder in _HABITUAL if folder.is_dir())]
        found = load_study(name)
        _refuse_together(
            {"--plan": plan, "--search": search, "--slurm": slurm is not None, "--storage": storage}
        )
        if search is not None:
            names: list[str] = []
        else:
            with one_line_warnings():
                planned = plan_study(found, selection, out, others)
            names = planned.names
            if plan:
                say(*plan_lines(planned))
                return
        if slurm is not None:
            if ray:
                raise GraceError("--ray and --slurm are two ways to the same end", "use one")
            given = _arguments(name, selection, out, runs or (), jobs_per_gpu)
            _submit(found, selection, out, others, jobs, given, slurm)
            return
        make = partial(
            make_study,
            found,
            selection,
            out,
            others=others,
            at_once=jobs,
            command=_typed(),
            machines=RayCluster(ray, jobs_per_gpu) if ray else ThisMachine(jobs_per_gpu),
            array=os.environ.get("SLURM_ARRAY_JOB_ID", "") if array_task else None,
            search=None if search is None else SearchSettings(search, storage),
        )
        with ComparisonProgress(names) as progress:
            made = make(progress)
        say(*result_lines(made))
        if made.failures:
            raise typer.Exit(1)


def _refuse_together(given: Mapping[str, object]) -> None:
    if given["--storage"] and not given["--search"]:
        raise GraceError("--storage is for a search", "give --search N too")
    if given["--search"]:
        for option in ("--plan", "--slurm"):
            if given[option]:
                raise GraceError(
                    f"{option} needs to know all runs, and --search chooses them one by one",
                    "leave one of them out",
                )


def _typed() -> str:
    """Return the command line, without the password that a database's URL may have."""
    words = ["grace", *sys.argv[1:]]
    for place, word in enumerate(words):
        if word.startswith("--storage="):
            words[place] = "--storage=URL"
        elif word == "--storage" and words[place + 1 :]:
            words[place + 1] = "URL"
    return shlex.join(words)


def _submit(
    study: StudySettings,
    selection: Selection,
    out: Path,
    others: Sequence[Path],
    jobs: int | None,
    arguments: Sequence[str],
    slurm: str,
) -> None:
    """Submit a study to Slurm, and print what was submitted."""
    job, num_tasks = submit_study(
        study,
        selection,
        out,
        others=others,
        most_tasks=jobs,
        arguments=arguments,
        options=sbatch_options(slurm),
    )
    if not job:
        say("nothing is left to make: the same command without --slurm writes the tables")
        return
    say(
        f"submitted array job {job} of {num_tasks} task{'' if num_tasks == 1 else 's'}; their "
        f"output: {out / 'logs'}/slurm-{job}-*.txt",
        "the same command with --plan shows what is done; the last task writes the tables",
    )


def _arguments(
    name: str, selection: Selection, out: Path, runs: Sequence[Path], jobs_per_gpu: int | None
) -> list[str]:
    """Return the arguments of ``grace`` for a task of an array job."""
    values = {
        "--scale": selection.scale,
        "--protocols": ",".join(selection.protocols),
        "--rows": ",".join(selection.rows),
        "--seeds": ",".join(map(str, selection.seeds)),
        "--jobs-per-gpu": str(jobs_per_gpu or ""),
        "--out": str(out),
    }
    given = [f"{option}={value}" for option, value in values.items() if value]
    given += [f"--runs={folder}" for folder in runs]
    return ["study", *given, "--array-task", "--", name, *selection.overrides]


def _split(arguments: list[str] | tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Split arguments into the study and the settings; no study: an empty name."""
    names = [text for text in arguments if "=" not in text]
    if len(names) > 1:
        raise GraceError(
            f"'{names[1]}' is no setting: after the study '{names[0]}' write KEY=VALUE"
        )
    settings = tuple(text for text in arguments if "=" in text)
    if settings and not names:
        raise GraceError(f"'{settings[0]}' is no study", "name one: 'grace study' lists them")
    return names[0] if names else "", settings


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",")) if text else ()


def _list() -> None:
    known = list_studies()
    width = max(map(len, known))
    say(*(f"{name:<{width}}  {title}" for name, title in known.items()))
