"""The arguments and options that several verbs share."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

argument = partial(typer.Argument, show_default=False)
option = partial(typer.Option, show_default=False)

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
