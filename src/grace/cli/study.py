"""``grace study``: the tables, figures and claims of the paper, or of a user's own study."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from grace.cli.compare import ended_like_ctrl_c, numbers
from grace.cli.comparison_progress import ComparisonProgress
from grace.cli.console import say
from grace.cli.errors import one_line_errors, one_line_warnings
from grace.cli.study_lines import plan_lines, result_lines
from grace.configs.study import list_studies, load_study
from grace.studies.study import make_study
from grace.studies.study_cells import Selection
from grace.studies.study_plan import plan_study
from grace.text.refusals import GraceError

REMEDIES = {"methods": "use --rows", "seeds": "use --seeds"}
"""What to do on the command line instead of setting a name."""

_HABITUAL = (Path("comparisons"), Path("runs"))
"""Where ``grace compare`` and ``grace run`` put their runs: they are looked through too."""


def study(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME|KEY=VALUE",
            help="A packaged study or a YAML file, then settings for every run. Without a name: "
            "list the studies.",
            show_default=False,
        ),
    ] = None,
    scale: Annotated[
        str,
        typer.Option(
            help="small or published. Default: small if there is one.", show_default=False
        ),
    ] = "",
    protocols: Annotated[
        str, typer.Option(help="Protocols, comma-separated. Default: all.", show_default=False)
    ] = "",
    rows: Annotated[
        str, typer.Option(help="Rows, comma-separated. Default: all.", show_default=False)
    ] = "",
    seeds: Annotated[
        str, typer.Option(help="Seeds: 1,2,3 or 1-3. Default: the scale's.", show_default=False)
    ] = "",
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Runs at a time. Default: as many as cores and memory allow.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder of all studies, which share their runs.")
    ] = Path("studies"),
    runs: Annotated[
        list[Path] | None,
        typer.Option(
            help="A further folder in which to look for finished runs; may be given again.",
            show_default=False,
        ),
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
        selection = Selection(
            scale,
            _words(protocols),
            _words(rows),
            tuple(numbers(seeds)) if seeds else (),
            overrides,
        )
        chosen = load_study(name)
        others = [*(runs or ()), *(folder for folder in _HABITUAL if folder.is_dir())]
        with one_line_warnings():
            planned = plan_study(chosen, selection, out, others)
        if plan:
            say(*plan_lines(planned))
            return
        with ComparisonProgress(planned.names) as progress:
            made = make_study(
                chosen,
                selection,
                out,
                progress,
                others=others,
                at_once=jobs,
                command=shlex.join(["grace", *sys.argv[1:]]),
            )
        say(*result_lines(made))
        if made.failures:
            raise typer.Exit(1)


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
