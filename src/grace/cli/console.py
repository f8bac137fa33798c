"""The only way to the terminal: text for people is escaped, output for programs is exact.

Names of classes, files and experiments, notes and errors may come from strangers. Printed as they
are, they could move the cursor, colour the terminal, forge lines or turn the direction of text.
"""

import json
import sys
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from grace.base.words import printable


def say(*lines: str, err: bool = False, bold: bool = False) -> None:
    """Print lines for people; characters that a terminal does not show are escaped.

    Args:
        lines: texts of one line each; a line break in a text is escaped too.
        err: print to standard error.
        bold: print in bold if it is a terminal.
    """
    encoding = getattr(sys.stderr if err else sys.stdout, "encoding", None) or "utf-8"
    for line in lines:
        # A terminal may know few characters.
        shown = printable(line).encode(encoding, "backslashreplace").decode(encoding)
        typer.echo(typer.style(shown, bold=True) if bold else shown, err=err)


def emit(data: str | bytes) -> None:
    """Print output for programs to standard output as it is: CSV, JSON lines, YAML, LaTeX."""
    typer.echo(data, nl=False)


def emit_json(value: Any) -> None:  # noqa: ANN401 - JSON is anything
    """Print a value as indented JSON, which no character in it can leave.

    Characters that a terminal does not show are written as JSON escapes: a reader gets the same
    value, a half surrogate of a file name included.
    """
    text = json.dumps(value, indent=2, ensure_ascii=False)
    if not all(line.isprintable() for line in text.split("\n")):
        text = json.dumps(value, indent=2)
    typer.echo(text)


def ask(question: str) -> bool:
    """Ask a question on the terminal.

    Raises:
        typer.Abort: if there is no answer.
    """
    return typer.confirm(printable(question))


def text_of(line: str, style: str = "") -> Text:
    """Return a line for people as rich's text: escaped, and without rich's markup."""
    return Text(printable(line), style)


def terminal(*, err: bool = False) -> Console:
    """Return rich's console on standard output or error; print only ``text_of`` to it."""
    return Console(stderr=err, highlight=False)
