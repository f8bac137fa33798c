"""What people see when something is wrong: one line, and an exit code that says whose fault."""

import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import typer

from grace.engine.launch import Launch
from grace.text.refusals import GraceError

_tracebacks: ContextVar[bool] = ContextVar("tracebacks", default=False)


def show_tracebacks(wanted: bool) -> None:
    """Choose whether errors show where they came from before their line."""
    _tracebacks.set(wanted)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn errors that come from what people gave into one line on stderr and exit code 2.

    Ctrl-C ends with 130. Anything else is our own fault and keeps its traceback.
    """
    try:
        yield
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    except BrokenPipeError:
        raise
    except (GraceError, OSError) as error:
        if _tracebacks.get():
            traceback.print_exc()
        typer.echo(f"error{_place()}: {_text(error)}", err=True)
        raise typer.Exit(2) from None


def _place() -> str:
    """Say which of several processes it was; any may be the only one to fail."""
    return f" (process {_rank()})" if _rank() else ""


def _rank() -> int:
    try:
        return Launch.from_environment().rank
    except ValueError:
        return 0


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        return ": ".join([*names, error.strerror.lower()])
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def one_line_warnings() -> Iterator[None]:
    """Print our own warnings about settings as one line each on stderr, in the first process."""
    from grace.configs.load import ConfigWarning

    caught: list[warnings.WarningMessage] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConfigWarning)
            yield
    finally:  # What fails may have been warned of.
        for warning in caught:
            _say(warning)


def _say(warning: warnings.WarningMessage) -> None:
    from grace.configs.load import ConfigWarning

    if not issubclass(warning.category, ConfigWarning):
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    elif _rank() == 0:
        typer.echo(f"warning: {warning.message}", err=True)
