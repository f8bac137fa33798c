"""Changes of a home other than updates: forget, prune, rollback, set. Torch-free.

A change is written to ``change.json`` before it begins, carried out, noted in ``changes.json``, and
then that file is removed. Whoever changes the home next finishes a change that was cut off: every
step of it can be done twice.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal, Self, final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grace.base import atomic, strict_json
from grace.base.errors import DamagedError, GraceError
from grace.base.strict_json import read_model
from grace.learner.removed import MAX_VERSIONS, RemovedVersion
from grace.learner.setting_changes import Line, SettingChange

MAX_NOTED = 10_000
"""The number of changes that a home remembers; the oldest are dropped."""

Kind = Literal["forget", "prune", "rollback", "set"]

_MAX_BYTES = 1 << 25
_MAX_WRITTEN = 1 << 22
"""Bytes of finished changes that are written; beyond it the oldest are dropped."""
_Number = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


@final
class Change(_Strict):
    """One change of a learner's home, as its history lists it."""

    kind: Kind
    date: Line
    class_names: tuple[str, ...] = ()
    """forget: the class whose images are removed."""
    versions: tuple[_Number, ...] = ()
    """forget: the versions that knew it; prune: those removed; rollback: the one put in use; set:
    the one made."""
    damaged: tuple[_Number, ...] = ()
    """forget: old versions that could not be read, and were removed for that reason."""
    was_in_use: _Number | None = None
    """rollback: the version in use before."""
    settings: tuple[SettingChange, ...] = ()
    """set: what changed."""
    removed: Annotated[tuple[RemovedVersion, ...], Field(max_length=MAX_VERSIONS)] = ()
    """prune: the facts of the removed versions; an earlier grace did not note them, and there are
    none of a damaged version."""

    @classmethod
    def now(
        cls,
        kind: Kind,
        versions: Sequence[int],
        *,
        class_names: Sequence[str] = (),
        damaged: Sequence[int] = (),
        was_in_use: int | None = None,
        settings: Sequence[SettingChange] = (),
        removed: Sequence[RemovedVersion] = (),
    ) -> Self:
        """Describe a change that begins now.

        Args:
            kind: what is done.
            versions: the versions that it concerns, as in ``Change.versions``.
            class_names: classes that are forgotten.
            damaged: unreadable versions that are removed.
            was_in_use: version in use before.
            settings: settings that change.
            removed: facts of versions that are removed.
        """
        return cls(
            kind=kind,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            class_names=tuple(class_names),
            versions=tuple(versions),
            damaged=tuple(damaged),
            was_in_use=was_in_use,
            settings=tuple(settings),
            removed=tuple(removed),
        )

    @model_validator(mode="after")
    def _names_what_it_concerns(self) -> Self:
        if len(self.class_names) != (self.kind == "forget"):
            raise GraceError("forget names one class, other changes name none")
        if self.kind in ("rollback", "set") and len(self.versions) != 1:
            raise GraceError(f"{self.kind} names no version, or several")
        if self.removed and self.kind != "prune":
            raise GraceError("only prune tells of removed versions")
        if not {own.number for own in self.removed} <= set(self.versions):
            raise GraceError("prune tells of versions that it did not remove")
        return self


def in_words(change: Change) -> str:
    """Describe a change in a line."""
    numbers = ", ".join(map(str, change.versions)) or "–"
    match change.kind:
        case "forget":
            dropped = ", ".join(map(str, change.damaged))
            more = f"; removed {dropped}, which could not be read" if dropped else ""
            return f"forgot {change.class_names[0]} in versions {numbers}{more}"
        case "prune":
            facts = {own.number: own.in_words for own in change.removed}
            return f"removed versions {', '.join(facts.get(n, str(n)) for n in change.versions)}"
        case "rollback":
            was = "" if change.was_in_use is None else f", before it {change.was_in_use}"
            return f"put version {numbers} in use{was}"
        case "set":
            return f"set {'; '.join(map(str, change.settings))} (version {numbers})"


@final
class _Noted(_Strict):
    format: Literal[1] = 1
    changes: tuple[Change, ...] = ()


@final
class _EarlierPurge(_Strict):
    """An interrupted ``forget`` of an earlier grace, ``purge.json``."""

    class_: str = Field(alias="class")


@final
class ChangeLog:
    """The files of a home that tell of its changes: the finished ones and an unfinished one.

    Args:
        home: directory of the learner.
    """

    def __init__(self, home: Path) -> None:
        self._noted = home / "changes.json"
        self._begun = home / "change.json"
        self._earlier = home / "purge.json"

    def unfinished(self) -> Change | None:
        """Return the change that was cut off; ``None``: there is none.

        Raises:
            DamagedError: if its file is damaged.
        """
        if _exists(self._begun):
            with _remedy("move it away, and repeat the command that was interrupted"):
                return read_model(self._begun, Change, 1 << 20)
        if _exists(self._earlier):
            earlier = read_model(self._earlier, _EarlierPurge, 1 << 16)
            return Change.now("forget", (), class_names=(earlier.class_,))
        return None

    def begin(self, change: Change) -> None:
        """Write down a change before its first step."""
        atomic.write_bytes(self._begun, strict_json.dump(_plain(change)))

    def end(self, change: Change) -> None:
        """Note that a change is carried out; it is noted once, however often this is called.

        A damaged file of changes blocks nothing: it is set aside, for people to look at.
        """
        try:
            noted = self.changes()
        except DamagedError:
            self._set_aside()
            noted = ()
        if change not in noted:
            atomic.write_bytes(self._noted, _newest([*noted, change][-MAX_NOTED:]))
        self.drop()

    def drop(self) -> None:
        """Remove the file of the unfinished change."""
        for path in (self._begun, self._earlier):
            if _exists(path):
                atomic.remove(path)

    def changes(self) -> Sequence[Change]:
        """Return the finished changes, oldest first.

        Raises:
            DamagedError: if their file is damaged.
        """
        if not _exists(self._noted):
            return ()
        with _remedy("the learner works without it: move it away, or restore it from a backup"):
            return read_model(self._noted, _Noted, _MAX_BYTES).changes

    def numbers(self) -> set[int]:
        """Return the numbers of all versions that the finished changes name, removed ones too."""
        with suppress(DamagedError):
            return {n for change in self.changes() for n in (*change.versions, *change.damaged)}
        return set()

    def set_aside(self) -> Sequence[Path]:
        """Return the damaged files of changes that were set aside."""
        return sorted(self._noted.parent.glob("changes.damaged.*.json"))

    def _set_aside(self) -> None:
        """Rename the damaged file of changes; earlier ones keep their names."""
        free = (self._noted.with_name(f"changes.damaged.{n}.json") for n in count(1))
        self._noted.rename(next(path for path in free if not _exists(path)))
        atomic.sync_folder(self._noted.parent)


@contextmanager
def _remedy(remedy: str) -> Iterator[None]:
    """Say what to do about a damaged file."""
    try:
        yield
    except DamagedError as error:
        raise DamagedError(error.what, remedy) from None


def _newest(changes: Sequence[Change]) -> bytes:
    """Return the file of the newest changes that fit into it; the last one is always there."""
    plain = [_plain(change) for change in changes]
    first, room = len(plain) - 1, _MAX_WRITTEN - len(strict_json.dump(plain[-1]))
    while first > 0 and room >= (size := len(strict_json.dump(plain[first - 1]))):
        first, room = first - 1, room - size
    return strict_json.dump({"format": 1, "changes": plain[first:]})


def _plain(change: Change) -> dict[str, Any]:
    """Return a change as JSON values, without what says nothing."""
    return change.model_dump(mode="json", exclude_defaults=True)


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()
