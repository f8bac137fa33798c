"""The arguments and options that several verbs share."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from grace.base.errors import GraceError
from grace.base.words import did_you_mean_one_of
from grace.cli.console import say

argument = partial(typer.Argument, show_default=False)
option = partial(typer.Option, show_default=False)


def choice(*names: str, choices: Sequence[str], **more: Any) -> Any:  # noqa: ANN401 - typer's
    """Declare an option that takes one of several words.

    Args:
        names: names of the option; without one, it has the parameter's name.
        choices: the words.
        more: further arguments of ``typer.Option``.
    """

    def checked(value: str | None) -> str | None:
        if value is not None and value not in choices:
            raise typer.BadParameter(f"'{value}' is unknown{did_you_mean_one_of(value, choices)}")
        return value

    return typer.Option(
        *names,
        metavar="|".join(choices),
        callback=checked,
        autocompletion=lambda: list(choices),
        **more,
    )


def percent(**more: Any) -> Any:  # noqa: ANN401 - typer's
    """Declare an option from 0 to 100, which warns of a number that may be meant as a share.

    Args:
        more: further arguments of ``typer.Option``.
    """

    def checked(parameter: typer.CallbackParam, value: float | None) -> float | None:
        if value is not None and 0 < value < 1:
            name = parameter.opts[0]
            instead = f"for a share of {value:g} use {name} {100 * value:g}"
            say(f"warning: {name} {value:g} is {value:g} %: {instead}", err=True)
        return value

    return option(min=0, max=100, metavar="PERCENT", callback=checked, **more)


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


def split(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Split ``[EXPERIMENT] [KEY=VALUE…]``; the default experiment is "digits".

    Raises:
        GraceError: if two experiments are named.
    """
    # The path of a file may hold a "=" too.
    words = [text for text in arguments if "=" not in text or _is_file(text)]
    if len(words) > 1:
        raise GraceError(
            f"'{words[1]}' is no setting: after the experiment '{words[0]}' write KEY=VALUE"
        )
    return words[0] if words else "digits", [text for text in arguments if text not in words]


def _is_file(text: str) -> bool:
    return text.endswith((".yaml", ".yml")) and Path(text).is_file()
