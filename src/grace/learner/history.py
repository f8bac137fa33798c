"""The history of a learner: one line of ``history.jsonl`` for everything that changed it.

A line is added when a change is done. A change that takes several steps is written to
``change.json`` before the first one: whoever changes the learner next finishes it, as every step
can be done twice. Torch-free.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Annotated, Literal, Self, final

from pydantic import Field, model_validator

from grace.base import atomic, strict_json
from grace.base.errors import DamagedError, GraceError
from grace.base.files import read_small
from grace.base.strict_json import checked, read_model
from grace.learner.document import Document, Sha256, UpdateRecord
from grace.learner.gate import Strict
from grace.learner.setting_changes import Line, SettingChange

MAX_BYTES = 1 << 24
"""The largest history that is read; before it gets larger, its older half is dropped."""
_Number = Annotated[int, Field(ge=1)]


@final
class Made(Strict):
    """A version that an update or a change of settings made."""

    version: _Number | None
    """``None``: the update was learnt elsewhere, before the learner came here."""
    parent: _Number | None = None
    status: Literal["accepted", "rejected"] = "accepted"
    digest: Sha256 | None = None
    update: UpdateRecord
    """Its last update."""
    num_bytes: Annotated[int, Field(ge=0)] | None = None


@final
class Change(Strict):
    """One line of the history."""

    kind: Literal["learn", "set", "forget", "prune", "rollback"]
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
    """learn, set: the settings that differ from those of the version before."""
    made: Made | None = None
    """learn, set: the version."""

    @model_validator(mode="after")
    def _names_what_it_concerns(self) -> Self:
        if len(self.class_names) != (self.kind == "forget"):
            raise GraceError("forget names one class, other changes name none")
        if self.kind in ("rollback", "set") and len(self.versions) != 1:
            raise GraceError(f"{self.kind} names no version, or several")
        if self.kind == "learn" and self.made is None:
            raise GraceError("learn names no version")
        return self

    @property
    def numbers(self) -> set[int]:
        """Numbers of all versions that it names."""
        made = {self.made.version} if self.made and self.made.version else set()
        return {*self.versions, *self.damaged, *made}

    @property
    def words(self) -> str:
        """What happened, in a line."""
        numbers = ", ".join(map(str, self.versions)) or "–"
        match self.kind:
            case "forget":
                dropped = ", ".join(map(str, self.damaged))
                more = f"; removed {dropped}, which could not be read" if dropped else ""
                return f"forgot {self.class_names[0]} in versions {numbers}{more}"
            case "prune":
                return f"removed versions {numbers}"
            case "rollback":
                was = "" if self.was_in_use is None else f", before it {self.was_in_use}"
                return f"put version {numbers} in use{was}"
            case "set":
                return f"set {'; '.join(map(str, self.settings))} (version {numbers})"
        assert self.made is not None
        return _learnt(self.made)


def _learnt(made: Made) -> str:
    update = made.update
    parts = [
        f"{verb} {', '.join(names)}"
        for verb, names in (
            ("learnt", update.new_class_names),
            ("learnt again, after they were forgotten:", update.revived_class_names),
        )
        if names
    ]
    what = "; ".join(parts) or "learnt more images of known classes"
    which = "" if made.version is None else f", version {made.version}"
    rejected = ", rejected" if made.status == "rejected" else ""
    images = f"{update.num_images} image{'' if update.num_images == 1 else 's'}"
    return f"{what} ({images}{which}{rejected})"


def now() -> str:
    """Return the date of a change that happens now."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@final
class History:
    """The files of a home that tell what changed it, and what is being changed.

    Args:
        home: directory of the learner.
    """

    def __init__(self, home: Path) -> None:
        self._path = home / "history.jsonl"
        self._begun = home / "change.json"

    def unfinished(self) -> Change | None:
        """Return the change that was cut off; ``None``: there is none.

        Raises:
            DamagedError: if its file is damaged.
        """
        if not _exists(self._begun):
            return None
        with _remedy("move it away, and repeat the command that was interrupted"):
            return read_model(self._begun, Change, 1 << 20)

    def begin(self, change: Change) -> None:
        """Write down a change before its first step."""
        atomic.write_bytes(self._begun, _line(change))

    def end(self, change: Change) -> None:
        """Note a change that is carried out; twice in a row it is noted once."""
        if change.made is None and change.kind != "set" and self.readable()[-1:] != [change]:
            self.add([change])
        self.drop()

    def drop(self) -> None:
        """Remove the file of the unfinished change."""
        if _exists(self._begun):
            atomic.remove(self._begun)

    def add(self, changes: Sequence[Change]) -> None:
        """Add lines; damaged ones stay as they are, and what is no such file is set aside."""
        try:
            lines = [line.rstrip(b"\n") + b"\n" for line in self._lines(damaged=True)]
        except DamagedError:
            lines = []
            aside = (self._path.with_name(f"history.damaged.{n}.jsonl") for n in count(1))
            self._path.rename(next(path for path in aside if not _exists(path)))
        lines += map(_line, changes)
        while sum(map(len, lines)) > MAX_BYTES and len(lines) > 1:
            lines = lines[len(lines) // 2 :]
        atomic.write_bytes(self._path, b"".join(lines))

    def changes(self) -> Sequence[Change]:
        """Return all that happened, oldest first.

        Raises:
            DamagedError: if the file is damaged.
        """
        with _remedy("the learner works without it: move it away, or restore it from a backup"):
            return [
                self._parsed(line, number)
                for number, line in enumerate(self._lines(damaged=True), 1)
            ]

    def readable(self) -> list[Change]:
        """Return what can be read of all that happened."""
        found = []
        for number, line in enumerate(self._lines(), 1):
            with suppress(DamagedError):
                found.append(self._parsed(line, number))
        return found

    def _parsed(self, line: bytes, number: int) -> Change:
        what = f"line {number} of '{self._path}'"
        return checked(Change, strict_json.parse(line, what), what)

    def _lines(self, *, damaged: bool = False) -> list[bytes]:
        if not _exists(self._path):
            return []
        try:
            return read_small(self._path, f"'{self._path}'", MAX_BYTES).splitlines(keepends=True)
        except DamagedError:
            if damaged:
                raise
            return []


def unnoted(documents: Sequence[Document], earlier: Sequence[Change] = ()) -> list[Change]:
    """Return what the history lacks of some versions: of new ones, or those of a killed process.

    Args:
        documents: of the versions, ascending.
        earlier: the history.
    """
    made: dict[int | None, Made] = {c.made.version: c.made for c in earlier if c.made is not None}
    new: list[Change] = []
    for document in documents:
        if document.number in made:
            continue
        if not made:
            # The updates before a learner was saved for the first time.
            for update in document.history[:-1]:
                own = Made(version=None, update=update.past, num_bytes=update.num_bytes or None)
                new.append(Change(kind="learn", date=update.date, made=own))
        update, parent = document.history[-1], made.get(document.parent)
        is_set = bool(document.changed) and parent is not None
        is_set = is_set and parent is not None and parent.update.task == update.task
        made[document.number] = Made(
            version=document.number,
            parent=document.parent,
            status=document.status,
            digest=document.digest,
            update=update.past,
            num_bytes=document.num_bytes,
        )
        new.append(
            Change(
                kind="set" if is_set else "learn",
                date=document.created if is_set or not update.date else update.date,
                versions=(document.number,) if is_set else (),
                settings=document.changed,
                made=made[document.number],
            )
        )
    return new


@contextmanager
def _remedy(remedy: str) -> Iterator[None]:
    """Say what to do about a damaged file."""
    try:
        yield
    except DamagedError as error:
        raise DamagedError(error.what, remedy) from None


def _line(change: Change) -> bytes:
    return strict_json.dump(change.model_dump(mode="json", exclude_defaults=True))


def _exists(path: Path) -> bool:
    return path.exists() or path.is_symlink()
