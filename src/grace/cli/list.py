"""``grace list``: the names of experiments, methods, datasets and backbones."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated

from grace.cli import options
from grace.cli.console import say
from grace.cli.errors import one_line_errors
from grace.settings.load import list_experiments
from grace.settings.registry import BACKBONES, DATASETS, METHOD_NOTES, METHODS


class Kind(StrEnum):
    """The kinds of names."""

    EXPERIMENTS = "experiments"
    METHODS = "methods"
    DATASETS = "datasets"
    BACKBONES = "backbones"


def list_names(
    kind: Annotated[Kind | None, options.argument(help="List only this kind.")] = None,
) -> None:
    """List the experiments, methods, datasets and backbones known by name."""
    with one_line_errors():
        for number, shown in enumerate([kind] if kind else list(Kind)):
            if kind is None:
                say(*([""] if number else []), shown.value)
            for line in _lines(_described(shown)):
                say(line if kind else f"  {line}")
            if shown is Kind.METHODS:
                for note in METHOD_NOTES:
                    say(f"warning: {note}", err=True)


def _described(kind: Kind) -> Mapping[str, str]:
    if kind is Kind.EXPERIMENTS:
        return list_experiments()
    known = {Kind.METHODS: METHODS, Kind.DATASETS: DATASETS, Kind.BACKBONES: BACKBONES}[kind]
    return {name: entry.description for name, entry in known.items()}


def _lines(described: Mapping[str, str]) -> list[str]:
    width = max(map(len, described), default=0)
    return [f"{name:<{width}}  {meaning}" for name, meaning in described.items()]
