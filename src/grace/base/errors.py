"""Refusals: errors about the user's input, separate from errors of the program."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Self, final

from typing_extensions import override

from grace.base.words import one_line, printable, shortened


class GraceError(ValueError):
    """The user's input cannot be used. Any other ``ValueError`` is an error of the program.

    Its text is one line, ``where: what: remedy``; empty parts are left out, and a long text loses
    its middle.

    Args:
        what: what is wrong, with the value that is wrong.
        remedy: what to do about it; an imperative clause, such as "set memory.size=5".
        where: what it concerns, such as a file, if ``what`` does not say it.
    """

    def __init__(self, what: str, remedy: str = "", *, where: str = "") -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy
        self.where = where

    @override
    def __str__(self) -> str:
        text = self.where
        for part in filter(None, (self.what, self.remedy)):
            # What asks a question needs no colon.
            text += part if not text else f" {part}" if text.endswith("?") else f": {part}"
        return shortened(text, MAX_LENGTH)

    def found_in(self, where: str) -> Self:
        """Put ``where`` before the error's place; return the error for ``raise``."""
        self.where = f"{where}: {self.where}" if self.where else where
        return self


def not_there(path: object) -> GraceError:
    """Return the error for a path that does not exist; the user may have mistyped it."""
    return GraceError(f"'{path}' does not exist", "check the spelling")


class GraceWarning(UserWarning):
    """A warning for the user; the work goes on."""


@final
class DamagedError(GraceError):
    """A file is damaged: missing, cut off, altered or forged.

    Its text is one short printable line, even if it quotes the file's content.
    """

    @override
    def __str__(self) -> str:
        return one_line(super().__str__())


@final
class BusyError(GraceError):
    """Another process is changing the file or folder."""


@final
class NewerFormatError(GraceError):
    """A later version of grace wrote the file in a format that this one does not know."""


if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

MAX_LENGTH = 10_000
"""Characters of the longest error that is shown."""
_DEMANDS: Mapping[str, str] = {
    "string_type": "a text",
    "string_too_long": "a text of at most {max_length} characters",
    "string_pattern_mismatch": "a text of the form {pattern}",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping of settings",
    "model_attributes_type": "a mapping of settings",
    "none_required": "none",
    "literal_error": "{expected}",
    "too_short": "at least {min_length} long",
}
"""What a value should be, by pydantic's error type, where pydantic's own words are not plain."""
_USUAL = "Input should be "
"""How pydantic says what a value should be."""


def error_of(detail: "ErrorDetails") -> ValueError | None:
    """Return the error that grace's own validator raised; ``None``: pydantic found the problem."""
    error = detail.get("ctx", {}).get("error")
    return error if isinstance(error, ValueError) else None


def demand_of(detail: "ErrorDetails") -> str | None:
    """Return what a value should be, such as "greater than 0"; ``None``: there are no words."""
    if detail["type"] in _DEMANDS:
        return _DEMANDS[detail["type"]].format(**detail.get("ctx", {}))
    if not detail["msg"].startswith(_USUAL):
        return None
    # What follows the comma tells why it is something else.
    return detail["msg"].removeprefix(_USUAL).partition(",")[0]


def first_problem(error: "ValidationError") -> str:
    """Return in one line what is wrong with a file that was read, and where in it.

    Only printable characters of the file are quoted. A remedy is left out: it is for the person who
    sets the value, not for the person who reads the file.
    """
    detail = error.errors(include_url=False)[0]
    cause = error_of(detail)
    where = ".".join(str(part) for part in detail["loc"])[:200]
    if isinstance(cause, GraceError):
        parts = [where, cause.where, cause.what]
    else:
        demand = demand_of(detail)
        parts = [where, f"it should be {demand}" if demand else str(cause or detail["msg"])]
    return printable(": ".join(filter(None, parts)))
