"""Refusals: errors about what a user gave, told apart from our own mistakes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, final

from typing_extensions import override

from grace.text.escaping import one_line


@final
@dataclass(frozen=True)
class Setting:
    """A setting that would help, and the value to give it."""

    path: str
    """Dotted, as in a configuration file: ``data.skip_unreadable``."""
    value: str = ""
    """As it would be written; empty where the user has to choose it."""

    def __str__(self) -> str:
        """Write it as the user of a configuration file would."""
        return f"set {self.path}={self.value}" if self.value else f"set {self.path}"


class GraceError(ValueError):
    """Something that a user gave cannot be used. Any other ``ValueError`` is a mistake of ours.

    Its text is ``where: what: remedy``, or as much of that as there is.

    Args:
        what: what is wrong, with the value that is wrong.
        remedy: what to do about it; an imperative clause, such as "remove it".
        setting: a setting that would help too. Whoever shows the error may know another way to
            write it: see ``worded``.
        where: what it concerns, such as a file, where ``what`` does not say it.
    """

    def __init__(
        self, what: str, remedy: str = "", *, setting: Setting | None = None, where: str = ""
    ) -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy
        self.setting = setting
        self.where = where

    @override
    def __str__(self) -> str:
        return self.worded({})

    def found_in(self, where: str) -> Self:
        """Add what it concerns, before anything that it names itself; return it for ``raise``."""
        self.where = f"{where}: {self.where}" if self.where else where
        return self

    def worded(self, settings: Mapping[str, str]) -> str:
        """Return its text.

        Args:
            settings: what to do instead of setting a path, by path: the command line's options,
                such as ``{"data.skip_unreadable": "use --skip-unreadable"}``.
        """
        advice = self.advice(settings)
        return ": ".join(part for part in (self.where, self.what, advice) if part)

    def advice(self, settings: Mapping[str, str]) -> str:
        """Return what to do about it; ``settings`` as in ``worded``."""
        setting = str(self.setting or "")
        if self.setting is not None and self.setting.path in settings:
            setting = settings[self.setting.path]
        return ", or ".join(part for part in (self.remedy, setting) if part)


class GraceWarning(UserWarning):
    """Something that a user should know; the work goes on."""


@final
class DamagedError(GraceError):
    """A file that cannot be trusted: missing, cut off, altered or forged.

    Its text is one short line, whatever of the file's content it quotes.
    """

    @override
    def worded(self, settings: Mapping[str, str]) -> str:
        return one_line(super().worded(settings))


@final
class BusyError(GraceError):
    """A file or folder that another process is changing."""


@final
class NewerFormatError(GraceError):
    """A file that a later version wrote in a format unknown here."""
