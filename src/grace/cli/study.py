"""``grace study``: the tables, figures and claims of the paper, or of a user's own study."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from grace.cli import options
from grace.cli.compare import ended_like_ctrl_c, numbers
from grace.cli.comparison_progress import ComparisonProgress
from grace.cli.console import say
from grace.cli.errors import one_line_errors, one_line_warnings
from grace.cli.study_lines import plan_lines, result_lines
from grace.configs.study import list_studies, load_study
from grace.studies.made_study import MadeStudy
from grace.studies.study import make_study
from grace.studies.study_cells import Selection
from grace.studies.study_plan import StudyPlan, plan_study
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
    out: Annotated[
        Path, typer.Option(help="Folder of all studies, which share their runs.")
    ] = Path("studies"),
    runs: Annotated[
        list[Path] | None,
        options.option(help="Another folder in which to look for finished runs; repeatable."),
    ] = None,
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
        with one_line_warnings():
            planned = plan_study(load_study(name), selection, out, others)
        if plan:
            say(*plan_lines(planned))
        elif _made(planned, out, others, jobs).failures:
            raise typer.Exit(1)


def _made(planned: StudyPlan, out: Path, others: Sequence[Path], jobs: int | None) -> MadeStudy:
    """Make a study while its progress is shown, and print its result."""
    with ComparisonProgress(planned.names) as progress:
        made = make_study(
            planned.study,
            planned.selection,
            out,
            progress,
            others=others,
            at_once=jobs,
            command=shlex.join(["grace", *sys.argv[1:]]),
        )
    say(*result_lines(made))
    return made


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
