"""Report errors to the user: one line, and an exit code that separates user errors from bugs."""

import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TextIO

import typer

from grace.base.errors import GraceError, GraceWarning
from grace.cli.console import say
from grace.engine.launch import Launch

_tracebacks: ContextVar[bool] = ContextVar("tracebacks", default=False)


def show_tracebacks(wanted: bool) -> None:
    """Print the traceback before the line of an error, or only the line."""
    _tracebacks.set(wanted)


@contextmanager
def one_line_errors(remedies: Mapping[str, str] | None = None) -> Iterator[None]:
    """Report a user's errors (``GraceError``, ``OSError``, no memory) in one line; exit code 2.

    Ctrl-C ends with 130. Any other error is a bug of the package and keeps its traceback.

    Args:
        remedies: by dotted path of a setting, what to do instead; see ``GraceError.worded``.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        say("interrupted", *getattr(error, "__notes__", ()), err=True)
        raise typer.Exit(130) from None
    except BrokenPipeError:
        raise
    except (GraceError, OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not _is_lack_of_memory(error):
            raise
        if _tracebacks.get():
            for part in traceback.format_exception(error):
                say(*part.splitlines(), err=True)
        say(f"error{_place()}: {_text(error, remedies or {})}", err=True)
        raise typer.Exit(2) from None


def _is_lack_of_memory(error: RuntimeError) -> bool:
    """Return True for torch's errors of an allocation; it has no type for that on the CPU."""
    texts = ("allocate memory", "out of memory", "Storage size calculation overflowed")
    return any(text in str(error) for text in texts)


def _place() -> str:
    """Name the process of a run in several processes; any of them can fail alone."""
    return f" (process {_rank()})" if _rank() else ""


def _rank() -> int:
    try:
        return Launch.from_environment().rank
    except ValueError:
        return 0


def _text(error: Exception, remedies: Mapping[str, str]) -> str:
    if isinstance(error, MemoryError | RuntimeError):
        return (
            "there is not enough memory: lower data.image_size, the batch_size of a recipe or "
            "engine.eval_batch_size, or free memory"
        )
    if isinstance(error, OSError) and error.strerror:
        names = [str(name) for name in (error.filename, error.filename2) if name is not None]
        return ": ".join([*names, error.strerror.lower()])
    text = error.worded(remedies) if isinstance(error, GraceError) else str(error)
    return " ".join(text.split()) or type(error).__name__


@contextmanager
def one_line_warnings(remedies: Mapping[str, str] | None = None) -> Iterator[None]:
    """Print each ``GraceWarning`` as one line on stderr, in the first process only.

    Args:
        remedies: as in ``one_line_errors``.
    """
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
                say(f"warning: {message.worded(remedies or {})}", err=True)

        warnings.showwarning = show
        yield
