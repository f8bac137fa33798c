"""``grace study``: the tables, figures and claims of the paper, or of a user's own study."""

import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import typer

from grace.base.errors import GraceError
from grace.cli import study_options as options
from grace.cli.compare import ended_like_ctrl_c, numbers
from grace.cli.comparison_progress import ComparisonProgress
from grace.cli.console import say
from grace.cli.errors import one_line_errors, one_line_warnings
from grace.cli.study_lines import plan_lines, result_lines
from grace.settings.load import ConfigWarning
from grace.settings.study import StudySettings, list_studies, load_study
from grace.studies.ray_cluster import RayCluster
from grace.studies.run_store import LeftOutWarning
from grace.studies.search import SearchSettings
from grace.studies.slurm import sbatch_options
from grace.studies.study import make_study, submit_study
from grace.studies.study_cells import Selection
from grace.studies.study_plan import plan_study
from grace.studies.this_machine import ThisMachine, visible_gpus

REMEDIES = {"methods": "use --rows", "seeds": "use --seeds"}
"""What to do on the command line instead of setting a name."""

_HABITUAL = (Path("comparisons"), Path("runs"))
"""Where ``grace compare`` and ``grace run`` put their runs: they are looked through too."""


def study(
    arguments: options.Arguments = None,
    scale: options.Scale = "",
    protocols: options.Protocols = "",
    rows: options.Rows = "",
    seeds: options.Seeds = "",
    jobs: options.Jobs = None,
    jobs_per_gpu: options.JobsPerGpu = None,
    out: options.Out = Path("studies"),
    runs: options.Runs = None,
    ray: options.Ray = "",
    slurm: options.Slurm = None,
    search: options.Search = None,
    storage: options.Storage = "",
    array_task: options.ArrayTask = False,
    plan: options.Plan = False,
) -> None:
    """Make a table or figure of the paper: its runs, its numbers beside ours, its claims.

    Interrupted at any moment, the same command goes on where it stopped.
    """
    with one_line_errors(REMEDIES), ended_like_ctrl_c(), one_line_warnings():
        name, overrides = _split(arguments or ())
        if not name:
            _list()
            return
        _refuse_together(plan=plan, search=search, slurm=slurm, storage=storage, ray=ray, rows=rows)
        chosen_seeds = tuple(numbers(seeds)) if seeds else ()
        selection = Selection(scale, _words(protocols), _words(rows), chosen_seeds, overrides)
        others = [*_folders(runs), *(folder for folder in _HABITUAL if folder.is_dir())]
        found, names = load_study(name), list[str]()
        if search is None:
            planned = plan_study(found, selection, out, others)
            for told in (ConfigWarning, LeftOutWarning):  # By the plan.
                warnings.simplefilter("ignore", told)
            names = planned.names
            if plan:
                say(*plan_lines(planned))
                return
        if jobs_per_gpu is not None and not ray and slurm is None and not visible_gpus():
            say("warning: --jobs-per-gpu has no effect: this machine has no GPU", err=True)
        if slurm is not None:
            given = _arguments(name, selection, out, runs or (), jobs_per_gpu)
            _submit(found, selection, out, others, jobs, given, slurm)
            return
        with ComparisonProgress(names) as progress:
            made = make_study(
                found,
                selection,
                out,
                progress,
                others=others,
                at_once=jobs,
                command=_typed(),
                machines=RayCluster(ray, jobs_per_gpu) if ray else ThisMachine(jobs_per_gpu),
                array=os.environ.get("SLURM_ARRAY_JOB_ID", "") if array_task else None,
                search=None if search is None else SearchSettings(search, storage),
            )
        say(*result_lines(made))
        if made.failures:
            raise typer.Exit(1)


def _folders(runs: Sequence[Path] | None) -> Sequence[Path]:
    """Return the folders of ``--runs``; refuse those that do not exist."""
    for folder in runs or ():
        if not folder.is_dir():
            what = "it is no folder" if folder.exists() else "there is no such folder"
            raise GraceError(f"--runs {folder}: {what}", "give a folder of runs")
    return runs or ()


def _refuse_together(
    *, plan: bool, search: int | None, slurm: str | None, storage: str, ray: str, rows: str
) -> None:
    """Refuse options that exclude each other, or have no effect together."""
    if storage and search is None:
        raise GraceError("--storage is for a search", "give --search N too")
    if rows and search is not None:
        raise GraceError("--rows has no effect on --search, which chooses the rows", "leave it out")
    for option, is_given in {"--plan": plan, "--slurm": slurm is not None}.items():
        if search is not None and is_given:
            raise GraceError(
                f"{option} needs to know all runs, and --search chooses them one by one",
                "leave one of them out",
            )
    for option, is_given in {"--ray": bool(ray), "--slurm": slurm is not None}.items():
        if plan and is_given:
            raise GraceError(
                f"{option} has no effect on --plan, which makes no runs", "leave one of them out"
            )
    if ray and slurm is not None:
        raise GraceError("--ray and --slurm are two ways to the same end", "use one")


def _typed() -> str:
    """Return the command line of a person, without the password that a database's URL may have."""
    words = ["grace", *(word for word in sys.argv[1:] if word != "--array-task")]
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
        "the same command with --plan in place of --slurm shows what is done; the last task "
        "writes the tables",
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
