"""Convert the errors of pydantic to words."""

from typing import TYPE_CHECKING

from grace.text.escaping import printable
from grace.text.refusals import GraceError

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


def error_of(detail: "ErrorDetails") -> ValueError | None:
    """Return the error that grace's own validator raised; ``None``: pydantic found the problem."""
    error = detail.get("ctx", {}).get("error")
    return error if isinstance(error, ValueError) else None


def first_problem(error: "ValidationError") -> str:
    """Return in one line what is wrong with a file that was read, and where in it.

    Only printable characters of the file are quoted. A remedy is left out: it is for the person who
    sets the value, not for the person who reads the file.
    """
    detail = error.errors(include_url=False)[0]
    cause = error_of(detail)
    where = [".".join(str(part) for part in detail["loc"])[:200]]
    if isinstance(cause, GraceError):
        where += [cause.where, cause.what]
    else:
        where += [str(cause or detail["msg"])]
    return printable(": ".join(part for part in where if part))
