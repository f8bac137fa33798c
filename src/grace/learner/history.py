"""The history of a learner: one line of ``history.jsonl`` for everything that changed it.

A line is added when a change is done. A change that takes several steps is written to
``change.json`` before the first one: whoever changes the learner next finishes it, as every step
can be done twice. Torch-free.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Annotated, Literal, Self, final

from pydantic import Field, model_validator

from grace.base import atomic, strict_json
from grace.base.errors import DamagedError, GraceError
from grace.base.files import read_small
from grace.base.strict_json import checked, read_model
from grace.base.words import counted
from grace.learner.document import Document, Sha256, UpdateRecord, remedied
from grace.learner.gate import Strict
from grace.learner.setting_changes import Line, SettingChange

MAX_BYTES = 1 << 24
"""The largest history that is read; before it gets larger, its older half is dropped."""
_Number = Annotated[int, Field(ge=1)]


@final
class Change(Strict):
    """One line of the history."""

    kind: Literal["learn", "set", "forget", "prune", "rollback"]
    date: Line
    version: _Number | None = None
    """learn, set: the one made, ``None`` if it was learnt before the learner came here; rollback:
    the one put in use."""
    parent: _Number | None = None
    """learn, set: the version that it was made from."""
    status: Literal["accepted", "rejected"] = "accepted"
    digest: Sha256 | None = None
    """learn, set: of the images of the update."""
    num_bytes: Annotated[int, Field(ge=0)] | None = None
    """learn, set: of the version."""
    update: UpdateRecord | None = None
    """learn, set: the last update of the version."""
    settings: tuple[SettingChange, ...] = ()
    """learn, set: the settings that differ from those of the parent."""
    was_in_use: _Number | None = None
    """rollback: the version in use before."""
    class_name: str = ""
    """forget: the class whose images are removed."""
    versions: tuple[_Number, ...] = ()
    """forget: the versions that knew it; prune: those removed."""
    damaged: tuple[_Number, ...] = ()
    """forget: old versions that could not be read, and were removed for that reason."""

    @model_validator(mode="after")
    def _says_what_it_concerns(self) -> Self:
        needed = {"learn": self.update, "forget": self.class_name, "prune": True}
        if not needed.get(self.kind, self.version):
            raise GraceError(f"{self.kind} does not say what it concerns")
        return self

    @property
    def numbers(self) -> set[int]:
        """Numbers of all versions that it names."""
        return {*self.versions, *self.damaged, *([self.version] if self.version else [])}

    @property
    def words(self) -> str:
        """What happened, in a line."""
        numbers = ", ".join(map(str, self.versions)) or "–"
        match self.kind:
            case "forget":
                dropped = ", ".join(map(str, self.damaged))
                more = f"; removed {dropped}, which could not be read" if dropped else ""
                return f"forgot {self.class_name} in versions {numbers}{more}"
            case "prune":
                return f"removed versions {numbers}"
            case "rollback":
                was = "" if self.was_in_use is None else f", before it {self.was_in_use}"
                return f"put version {self.version} in use{was}"
            case "set":
                return f"set {'; '.join(map(str, self.settings))} (version {self.version})"
        assert self.update is not None
        new, revived = map(
            ", ".join, (self.update.new_class_names, self.update.revived_class_names)
        )
        parts = [f"learnt {new}"] * bool(new)
        parts += [f"learnt again, after they were forgotten: {revived}"] * bool(revived)
        what = "; ".join(parts) or "learnt more images of known classes"
        which = f", version {self.version}" if self.version else ""
        rejected = ", rejected" if self.status == "rejected" else ""
        return f"{what} ({counted(self.update.num_images, 'image')}{which}{rejected})"


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
        if not os.path.lexists(self._begun):
            return None
        with remedied("move it away, and repeat the command that was interrupted"):
            return read_model(self._begun, Change, 1 << 20)

    def begin(self, change: Change) -> None:
        """Write down a change before its first step."""
        atomic.write_bytes(self._begun, _line(change))

    def end(self, change: Change) -> None:
        """Note a change that is carried out; twice in a row it is noted once."""
        if change.kind != "set" and self.readable()[-1:] != [change]:
            self.add([change])
        if self.unfinished() == change:  # Not another one, which could not be finished before.
            self.drop()

    def drop(self) -> None:
        """Remove the file of the unfinished change."""
        if os.path.lexists(self._begun):
            atomic.remove(self._begun)

    def add(self, changes: Sequence[Change]) -> None:
        """Add lines; damaged ones stay as they are, and what is no such file is set aside."""
        try:
            lines = [line.rstrip(b"\n") + b"\n" for line in self._lines()]
        except DamagedError:
            lines = []
            aside = (self._path.with_name(f"history.damaged.{n}.jsonl") for n in count(1))
            self._path.rename(next(path for path in aside if not os.path.lexists(path)))
        lines += map(_line, changes)
        while sum(map(len, lines)) > MAX_BYTES and len(lines) > 1:
            lines = lines[len(lines) // 2 :]
        atomic.write_bytes(self._path, b"".join(lines))

    def changes(self) -> Sequence[Change]:
        """Return all that happened, oldest first.

        Raises:
            DamagedError: if the file is damaged.
        """
        with remedied("the learner works without it: move it away, or restore it from a backup"):
            return [self._parsed(*line) for line in enumerate(self._lines(), 1)]

    def readable(self) -> list[Change]:
        """Return what can be read of all that happened."""
        found: list[Change] = []
        with suppress(DamagedError):
            for line in enumerate(self._lines(), 1):
                with suppress(DamagedError):
                    found.append(self._parsed(*line))
        return found

    def _parsed(self, number: int, line: bytes) -> Change:
        what = f"line {number} of '{self._path}'"
        return checked(Change, strict_json.parse(line, what), what)

    def _lines(self) -> list[bytes]:
        if not os.path.lexists(self._path):
            return []
        return read_small(self._path, f"'{self._path}'", MAX_BYTES).splitlines(keepends=True)


def _line(change: Change) -> bytes:
    return strict_json.dump(change.model_dump(mode="json", exclude_defaults=True))


def unnoted(documents: Sequence[Document], earlier: Sequence[Change] = ()) -> list[Change]:
    """Return what the history lacks of some versions: of new ones, or those of a killed process.

    Args:
        documents: of the versions, ascending.
        earlier: the history.
    """
    made = {change.version: change for change in earlier if change.update}
    new: list[Change] = []
    for document in documents:
        if document.number in made:
            continue
        if not made:
            # The updates before a learner was saved for the first time.
            new += [
                Change(
                    kind="learn", date=own.date, update=own.past, num_bytes=own.num_bytes or None
                )
                for own in document.history[:-1]
            ]
        update, parent = document.history[-1], made.get(document.parent)
        # A version of ``grace set`` has learnt nothing that its parent had not.
        is_set = document.changed and parent and parent.update and parent.update.task == update.task
        made[document.number] = Change(
            kind="set" if is_set else "learn",
            date=document.created if is_set or not update.date else update.date,
            version=document.number,
            parent=document.parent,
            status=document.status,
            digest=document.digest,
            num_bytes=document.num_bytes,
            update=update.past,
            settings=document.changed,
        )
        new.append(made[document.number])
    return new


def ledger(changes: Sequence[Change]) -> Iterator[tuple[Change, UpdateRecord, Sequence[str]]]:
    """Yield every update and every change of settings of a learner, in the order of time.

    Args:
        changes: the history.

    Yields:
        The change that made a version, the last update of the version, and the names of all classes
        known after it, by index, forgotten classes included.
    """
    names: dict[int | None, tuple[str, ...]] = {}
    for change in changes:
        if change.update is not None:
            own = change.update.new_class_names if change.kind == "learn" else ()
            names[change.version] = (*names.get(change.parent, ()), *own)
            yield change, change.update, names[change.version]
