"""``grace info``: a learner's classes, method, backbones and size."""

from pathlib import Path
from typing import Annotated

import typer

from grace.cli.console import emit_json, say
from grace.cli.errors import one_line_errors
from grace.cli.info_page import as_json, as_lines
from grace.home.inventory import take_inventory
from grace.home.store import ModelStore


def info(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Directory of the learner.")],
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show a learner's classes, method, backbones and size."""
    with one_line_errors():
        inventory = take_inventory(ModelStore.open(model))
        if json:
            emit_json(as_json(inventory))
        else:
            say(*as_lines(inventory))
