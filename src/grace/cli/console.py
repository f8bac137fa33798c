"""The only way to the terminal: text for people is escaped, output for programs is exact.

Names of classes, files and experiments, notes and errors may come from strangers. Printed as they
are, they could move the cursor, colour the terminal, forge lines or turn the direction of text.
An error of a user is one line and exit code 2; a bug keeps its traceback.
"""

import json
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from grace.base.errors import MAX_LENGTH, GraceError, GraceWarning
from grace.base.words import in_one_line, printable, shortened
from grace.engine.launch import Launch

_tracebacks: ContextVar[bool] = ContextVar("tracebacks", default=False)
_NO_MEMORY = (
    "there is not enough memory: lower data.image_size, the batch_size of a recipe or "
    "engine.eval_batch_size, or free memory"
)


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
    """Ask a question on the terminal; no answer counts as Ctrl-C."""
    return typer.confirm(printable(question))


def text_of(line: str, style: str = "") -> Text:
    """Return a line for people as rich's text: escaped, and without rich's markup."""
    return Text(printable(line), style)


def terminal(*, err: bool = False) -> Console:
    """Return rich's console on standard output or error; print only ``text_of`` to it."""
    return Console(stderr=err, highlight=False)


def show_tracebacks(wanted: bool) -> None:
    """Print the traceback before the line of an error, or only the line."""
    _tracebacks.set(wanted)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Report a user's errors (``GraceError``, ``OSError``, no memory) in one line; exit code 2.

    Ctrl-C ends with 130. Any other error is a bug of the package and keeps its traceback.
    """
    try:
        yield
    except (KeyboardInterrupt, typer.Abort) as error:
        say("interrupted", *getattr(error, "__notes__", ()), err=True)
        raise typer.Exit(130) from None
    except BrokenPipeError:
        raise
    except (GraceError, OSError, MemoryError, RuntimeError, ImportError) as error:
        text = _text(error)
        if text is None:
            raise
        if _tracebacks.get():
            for part in traceback.format_exception(error):
                say(*part.splitlines(), err=True)
        # Any process of a run in several can fail alone.
        place = f" (process {_rank()})" if _rank() else ""
        say(f"error{place}: {shortened(' '.join(text.split()), MAX_LENGTH)}", err=True)
        raise typer.Exit(2) from None


def _text(error: Exception) -> str | None:
    """Return the text for the user; ``None``: the error is a bug of the package."""
    if isinstance(error, GraceError):
        return str(error) or type(error).__name__
    if isinstance(error, OSError):
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        return ": ".join([*names, error.strerror.lower()]) if error.strerror else in_one_line(error)
    # torch has no type for a failed allocation on the CPU, and a library that finds no memory
    # to be loaded into is an ImportError.
    lacks = ("allocate memory", "out of memory", "Storage size calculation overflowed",
             "failed to map", "cannot allocate")  # fmt: skip
    if isinstance(error, MemoryError) or any(text in str(error) for text in lacks):
        return _NO_MEMORY
    return None


def _rank() -> int:
    try:
        return Launch.from_environment().rank
    except ValueError:
        return 0


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Print each ``GraceWarning`` as one line on stderr, in the first process only."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", GraceWarning)
        show_others = warnings.showwarning

        def show(message: Warning | str, *place: Any, **more: Any) -> None:  # noqa: ANN401 - passed on
            if not isinstance(message, GraceWarning):
                show_others(message, *place, **more)
            elif _rank() == 0:
                say(f"warning: {shortened(str(message), MAX_LENGTH)}", err=True)

        warnings.showwarning = show
        yield
