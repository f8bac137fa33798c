"""The arguments and options that several verbs share."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from grace.base.errors import GraceError

argument = partial(typer.Argument, show_default=False)
option = partial(typer.Option, show_default=False)


percent = partial(option, max=100, metavar="PERCENT")
points = partial(option, min=0, max=100, metavar="POINTS")

Learner = Annotated[Path, argument(metavar="MODEL", help="Directory of the learner.")]
Version = Annotated[int | None, option(help="Version of the learner. Default: the one in use.")]
ExperimentSettings = Annotated[
    list[str] | None,
    argument(
        metavar="EXPERIMENT|KEY=VALUE",
        help="A packaged experiment or a YAML file (default: digits), then settings such as "
        "method=der, seed=2 or method.threshold=0.5.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]


def split(
    arguments: Sequence[str], kind: str = "experiment", default: str = "digits"
) -> tuple[str, list[str]]:
    """Split ``[NAME] [KEY=VALUE…]``, of which the name is that of an experiment or a study.

    Raises:
        GraceError: if two names are given, or only settings where no name is the default.
    """
    # The path of a file may hold a "=" too.
    names = [text for text in arguments if "=" not in text or _is_file(text)]
    if len(names) > 1:
        raise GraceError(
            f"'{names[1]}' is no setting: after the {kind} '{names[0]}' write KEY=VALUE"
        )
    if arguments and not names and not default:
        raise GraceError(f"'{arguments[0]}' is no {kind}", f"name one: 'grace {kind}' lists them")
    return names[0] if names else default, [text for text in arguments if text not in names]


def words(text: str) -> tuple[str, ...]:
    """Return the words of a comma-separated text."""
    return tuple(word.strip() for word in text.split(",")) if text else ()


def _is_file(text: str) -> bool:
    return text.endswith((".yaml", ".yml")) and Path(text).is_file()
