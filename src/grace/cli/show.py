"""``grace show``: an experiment's resolved settings and their meanings."""

from typing import Annotated

import typer
from rich.table import Table

from grace.cli import options
from grace.cli.arguments import split
from grace.cli.console import emit, say, terminal, text_of
from grace.cli.errors import one_line_errors, one_line_warnings
from grace.settings.describe import describe_settings
from grace.settings.load import dump_settings, load_experiment


def show(
    arguments: options.ExperimentSettings = None,
    yaml: Annotated[
        bool, typer.Option("--yaml", help="Print YAML that 'grace run' reads back.")
    ] = False,
) -> None:
    """Show an experiment's resolved settings with their meanings."""
    with one_line_errors(), one_line_warnings():
        settings = load_experiment(*split(arguments or ()))
        if yaml:
            emit(dump_settings(settings))
            return
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("", no_wrap=True)
        table.add_column("setting", no_wrap=True)
        table.add_column("value", overflow="fold", max_width=28)
        table.add_column("meaning")
        for row in describe_settings(settings):
            mark, style = ("", "") if row.is_default else ("*", "bold")
            value = text_of(_value(row.value), style)
            table.add_row(mark, text_of(row.path, style), value, text_of(row.meaning))
        terminal().print(table)
        say("", "* differs from its default")


def _value(value: object) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case tuple():
            return "[" + ", ".join(str(part) for part in value) + "]"
    return str(value)
