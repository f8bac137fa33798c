"""``grace info``: a learner's classes, method, backbones and size; or its model card."""

from pathlib import Path
from typing import Annotated

import typer

from grace.base.atomic import write_bytes
from grace.base.errors import GraceError
from grace.cli import options
from grace.cli.console import emit, emit_json, say
from grace.cli.errors import one_line_errors
from grace.cli.info_page import as_json, as_lines
from grace.learner.card import card_of
from grace.learner.inventory import take_inventory
from grace.learner.store import ModelStore


def info(
    model: options.Learner,
    json: options.AsJson = False,
    as_card: Annotated[
        bool, typer.Option("--card", help="Print a model card in Markdown instead.")
    ] = False,
    out: Annotated[
        Path | None,
        options.option(metavar="FILE", help="File to write the card to; it is replaced."),
    ] = None,
) -> None:
    """Show a learner's classes, method, backbones and size, or its model card."""
    with one_line_errors():
        if as_card and json:
            raise GraceError("--json and --card exclude each other", "give one of them")
        if out is not None and not as_card:
            raise GraceError("--out has no effect without --card", "add --card or leave it out")
        home = ModelStore.open(model)
        if as_card:
            _print_card(home, out)
            return
        inventory = take_inventory(home)
        if json:
            emit_json(as_json(inventory))
        else:
            say(*as_lines(inventory))


def _print_card(home: ModelStore, out: Path | None) -> None:
    text = home.steadily(lambda: card_of(home))
    if out is None:
        emit(text)
        return
    if not out.resolve().parent.is_dir():
        raise GraceError(f"there is no folder '{out.parent}' to write into", "create it")
    write_bytes(out, text.encode())
    say(f"wrote '{out}'")
