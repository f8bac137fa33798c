"""``grace list`` and ``grace show``: what is known by name, and the settings of an experiment."""

from collections.abc import Mapping
from typing import Annotated, Literal, get_args

import typer

from grace.cli import options
from grace.cli.console import emit, say
from grace.cli.options import split
from grace.cli.show import aligned
from grace.settings.load import describe_settings, dump_settings, list_experiments, load_experiment
from grace.settings.recipe import setting_text
from grace.settings.registry import BACKBONES, DATASETS, METHODS, REFUSED_METHODS, Entry, MethodFile

Kind = Literal["experiments", "methods", "datasets", "backbones"]


def list_names(
    kind: Annotated[Kind | None, options.argument(help="List only this kind.")] = None,
) -> None:
    """List the experiments, methods, datasets and backbones known by name."""
    for number, shown in enumerate([kind] if kind else get_args(Kind)):
        if kind is None:
            say(*([""] if number else []), shown)
        lines = aligned([[name, meaning] for name, meaning in _described(shown).items()])
        say(*(line if kind else f"  {line}" for line in lines))
        if shown == "methods":
            say(*(f"warning: {note}" for note in REFUSED_METHODS.values()), err=True)


def _described(kind: Kind) -> Mapping[str, str]:
    if kind == "experiments":
        return list_experiments()
    known: dict[Kind, Mapping[str, Entry | MethodFile]] = {
        "methods": METHODS,
        "datasets": DATASETS,
        "backbones": BACKBONES,
    }
    return {name: entry.description for name, entry in known[kind].items()}


def show_settings(
    arguments: options.ExperimentSettings = None,
    yaml: Annotated[
        bool, typer.Option("--yaml", help="Print YAML that 'grace run' reads back.")
    ] = False,
) -> None:
    """Show an experiment's resolved settings with their meanings."""
    settings = load_experiment(*split(arguments or ()))
    if yaml:
        emit(dump_settings(settings))
        return
    rows = [
        ["" if row.is_default else "*", row.path, setting_text(row.value), row.meaning]
        for row in describe_settings(settings)
    ]
    heading, *lines = aligned([["", "setting", "value", "meaning"], *rows])
    say(heading, bold=True)
    say(*lines, "", "* differs from its default")
