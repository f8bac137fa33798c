"""Words for what pydantic finds wrong with a value."""

from typing import TYPE_CHECKING

from grace.text.escaping import printable
from grace.text.refusals import GraceError

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails


def error_of(detail: "ErrorDetails") -> ValueError | None:
    """Return the error that a validator of ours raised; ``None`` if pydantic itself complains."""
    error = detail.get("ctx", {}).get("error")
    return error if isinstance(error, ValueError) else None


def first_problem(error: "ValidationError") -> str:
    """Say in one line what is wrong with a file that was read, and where in it.

    Of what the file holds only characters that a terminal just shows are quoted. A remedy is left
    out: it is meant for whoever sets the value, not for whoever reads the file.
    """
    detail = error.errors(include_url=False)[0]
    own = error_of(detail)
    message = own.what if isinstance(own, GraceError) else str(own or detail["msg"])
    where = ".".join(str(part) for part in detail["loc"])[:200]
    return printable(f"{where}: {message}" if where else message)
