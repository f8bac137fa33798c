"""Report errors to the user: one line, and an exit code that separates user errors from bugs."""

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

import typer

from grace.base.errors import MAX_LENGTH, GraceError, GraceWarning
from grace.base.words import in_one_line, shortened
from grace.cli.console import say
from grace.engine.launch import Launch

_tracebacks: ContextVar[bool] = ContextVar("tracebacks", default=False)
_NO_MEMORY = (
    "there is not enough memory: lower data.image_size, the batch_size of a recipe or "
    "engine.eval_batch_size, or free memory"
)


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
    except KeyboardInterrupt as error:
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

        def show(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if not isinstance(message, GraceWarning):
                show_others(message, category, filename, lineno, file, line)
            elif _rank() == 0:
                say(f"warning: {shortened(str(message), MAX_LENGTH)}", err=True)

        warnings.showwarning = show
        yield
