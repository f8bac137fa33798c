"""``grace info``: a learner's classes, method, backbones and size."""

from grace.cli import options
from grace.cli.console import emit_json, say
from grace.cli.errors import one_line_errors
from grace.cli.info_page import as_json, as_lines
from grace.home.inventory import take_inventory
from grace.home.store import ModelStore


def info(
    model: options.Learner,
    json: options.AsJson = False,
) -> None:
    """Show a learner's classes, method, backbones and size."""
    with one_line_errors():
        inventory = take_inventory(ModelStore.open(model))
        if json:
            emit_json(as_json(inventory))
        else:
            say(*as_lines(inventory))
