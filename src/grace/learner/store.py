"""A learner's home: its versions, the objects they consist of, and an unfinished update.

::

    MODEL/
      model.json           the settings and image shape it was created with
      current.json         the number of the version in use
      versions/0001.json   one document per version
      objects/<sha256>…    tensors and images, by content: versions share what did not change
      pending/             an unfinished update
      change.json          an unfinished forget, prune, rollback or set
      history.jsonl        what happened, a line each
      lock                 held by the process that changes the learner

Objects are written first, then the document, then the pointer; each file is written beside its
place and renamed. A reader sees the old version or the new one, never half of either.
"""

import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, final

from pydantic import BaseModel, ConfigDict, Field

from grace.base import atomic, strict_json
from grace.base.errors import DamagedError, GraceError, NewerFormatError, not_there
from grace.base.files import inside, read_small
from grace.base.lock import exclusive
from grace.base.objects import ObjectStore
from grace.base.strict_json import read_model
from grace.learner.document import (
    MAX_BYTES,
    Creation,
    Document,
    ObjectRef,
    parse_document,
    read_creation,
    refuse_taken,
)
from grace.learner.history import Change, History, now, unnoted
from grace.settings.experiment import ExperimentSettings

# torch is imported only where tensors are read or written, so that reading documents is quick.
if TYPE_CHECKING:
    from torch import Tensor

    from grace.engine.journal import Journal

Put = Callable[[Mapping[str, "Tensor"]], ObjectRef]
"""Stores tensors (of any shape) by content and returns a reference."""


_REFERENCE = re.compile(rb'"sha256"\s*:\s*"([0-9a-f]{64})"')
_NUM_TRIES = 100
"""Times that a reader begins anew beside a process that changes the home."""
_OTHER_VERSION = "restore it from a backup, or roll back to another version"
"""Remedy for a version whose document is damaged."""

T = TypeVar("T")


@final
class _Pointer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: int = Field(ge=1)


@final
@dataclass(frozen=True)
class Survey:
    """What can be read of a home's versions.

    Args:
        current: number of the version in use; ``None``: the first update is not finished.
        documents: the versions that can be read, in order, the one in use among them.
        damaged: the errors of old versions that cannot be read, by number.
    """

    current: int | None
    documents: Sequence[Document]
    damaged: Mapping[int, GraceError]


@final
class _Pending(BaseModel):
    """The unfinished update: the version it starts from, its images, and its version's number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    parent: int | None
    digest: str
    number: int
    settings: str = ""
    """The settings that the update changes."""


def to_drop(model: Path) -> str:
    """Say how an interrupted update of a learner is dropped."""
    return f"drop it by 'grace learn --model {shlex.quote(str(model))} --discard'"


@final
class ModelStore:
    """The home of one learner: a directory that ``open`` finds or ``create`` makes."""

    def __init__(self, path: Path, creation: Creation) -> None:
        self.path = path
        self._objects = ObjectStore(path / "objects")
        self.creation = creation
        self.log = History(path)

    @classmethod
    def create(cls, path: Path, creation: Creation) -> Self:
        """Create the home of a learner that has learnt nothing yet.

        Raises:
            GraceError: if the directory exists already.
            BusyError: if another process creates a learner there.
        """
        refuse_taken(path)
        path.mkdir(parents=True, exist_ok=True)
        with exclusive(path / "lock", f"'{path}'"):
            refuse_taken(path)  # Another process may have been quicker.
            inside(path, "versions").mkdir(exist_ok=True)
            text = creation.model_dump(mode="json")
            atomic.write_bytes(path / "model.json", strict_json.dump(text))
            atomic.sync_folder(path.parent)
        return cls(path, creation)

    @classmethod
    def open(cls, path: Path) -> Self:
        """Open the home of a learner.

        Raises:
            GraceError: if there is no learner.
            NewerFormatError: if a newer grace made it.
            DamagedError: if ``model.json`` is damaged.
        """
        if not path.exists():
            raise not_there(path)
        if not (path / "model.json").exists():
            raise GraceError(
                f"'{path}' is no learner (it has no model.json)",
                "give the directory that 'grace learn' made",
            )
        for name in ("versions", "objects", "pending"):
            inside(path, name)
        return cls(path, read_creation(path))

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock while the context lasts; first finish and remove what was cut off.

        Raises:
            BusyError: if another process holds it.
            GraceError: if the learner has been replaced by another one.
        """
        with exclusive(self.path / "lock", f"'{self.path}'"):
            if read_creation(self.path) != self.creation:
                raise GraceError(f"'{self.path}' is another learner now", "load it again")
            for folder in (self.path, inside(self.path, "versions")):
                atomic.remove_leftovers(folder)
            change = self.log.unfinished()
            if change is not None:
                self._finish(change)
            self.note_versions()
            self._tidy()
            yield

    def settings(self) -> ExperimentSettings:
        """Return the settings of the version in use; before the first one, those it was made with.

        Raises:
            DamagedError: if that version's document is damaged.
        """
        number = self.current()
        return self.creation.settings if number is None else self.document(number).settings

    def next_number(self) -> int:
        """Return the number of the next version: above all kept ones, and all removed ones noted.

        So the history never gives a number to two versions.
        """
        noted = (number for change in self.log.readable() for number in change.numbers)
        return max([*self.numbers(), *noted], default=0) + 1

    def finish(self) -> Change | None:
        """Finish the change that an earlier process began; return it, or ``None``.

        Call it before deciding that there is nothing to do.

        Raises:
            BusyError: if another process changes the home.
        """
        change = self.log.unfinished()
        if change is not None:
            with self.changing():
                pass
        return change

    # The changes other than updates; they are made while ``changing`` lasts.

    def prune(self, numbers: Sequence[int]) -> None:
        """Remove versions, and the objects that only they use; the version in use stays.

        What their updates learnt stays in the history.
        """
        gone = [number for number in numbers if number != self.current()]
        if gone:
            self._carry_out(Change(kind="prune", date=now(), versions=tuple(gone)))

    def roll_back(self, number: int) -> None:
        """Put another version in use; it must be there."""
        try:
            before = self.current()
        except DamagedError:
            before = None  # It is what people roll back from.
        if number != before:
            self._carry_out(
                Change(kind="rollback", date=now(), versions=(number,), was_in_use=before)
            )

    def add_settings(self, document: Document) -> None:
        """Save a version that differs from the one in use by its settings, and put it in use."""
        change = Change(
            kind="set", date=now(), versions=(document.number,), settings=document.changed
        )
        assert self.log.unfinished() is None
        self.log.begin(change)
        self.write(document)
        self._finish(change)

    def purge(self, name: str) -> Change:
        """Drop a class's images from every version and mask it there; return what was done.

        An old version that is damaged cannot be masked: it is removed.

        Raises:
            GraceError: if an update was interrupted, which may still use the images.
            NewerFormatError: if a version was made by a newer grace.
        """
        if self.pending():
            raise GraceError(
                f"an update of '{self.path}' was interrupted",
                f"run it again to finish it, or {to_drop(self.path)}",
            )
        self.discard()
        survey = self.survey()
        for error in survey.damaged.values():
            if isinstance(error, NewerFormatError):
                raise error
        change = Change(
            kind="forget",
            date=now(),
            class_names=(name,),
            versions=tuple(m.number for m in survey.documents if name in m.live_class_names),
            damaged=tuple(sorted(survey.damaged)),
        )
        self._carry_out(change)
        return change

    def _carry_out(self, change: Change) -> None:
        stuck = self.log.unfinished()
        if stuck is None:
            self.log.begin(change)
        self._finish(change)
        if stuck is not None:
            self._finish(stuck)

    def _finish(self, change: Change) -> None:
        """Do all steps of a change; those that are done already change nothing.

        If the version in use is damaged, a class cannot be forgotten in it: that stays unfinished.
        """
        if change.kind == "set" and change.versions[-1] not in self.numbers():
            self._tidy()
            self.log.drop()  # It was cut off before its version was saved.
            return
        if change.kind in ("rollback", "set"):
            self.make_current(change.versions[-1])
        if change.kind == "set":
            self.note_versions()
        if change.kind == "prune":
            for number in change.versions:
                if number != self.current():
                    self.drop(number)
        if change.kind == "forget":
            try:
                survey = self.survey()
            except DamagedError:
                return
            for number in survey.damaged:
                self.drop(number)
            for document in survey.documents:
                if change.class_names[0] in document.live_class_names:
                    self.write(document.without(change.class_names[0]))
        self._tidy()
        self.log.end(change)

    def note_versions(self) -> None:
        """Add the versions to the history that it lacks: a new one, or one of a killed process."""
        new = self._unnoted()
        if new:
            self.log.add(new)

    def history(self) -> Sequence[Change]:
        """Return all that happened here, oldest first.

        Raises:
            DamagedError: if the history is damaged.
        """
        return [*self.log.changes(), *self._unnoted()]

    def _unnoted(self) -> Sequence[Change]:
        earlier = self.log.readable()
        noted = {change.made.version for change in earlier if change.made}
        documents: list[Document] = []
        for number in self.numbers():
            if number not in noted:
                with suppress(GraceError):  # A damaged one blocks nothing.
                    documents.append(self.document(number))
        return unnoted(documents, earlier)

    def _tidy(self) -> None:
        """Remove what an interrupted process left and nobody needs."""
        folder = inside(self.path, "pending")
        if not (folder / "update.json").exists():
            self.discard()
        elif not self.pending():
            # Its version is saved; the file still tells that this update is done.
            for entry in folder.iterdir():
                if entry.name != "update.json":
                    entry.unlink()
        with suppress(DamagedError):  # Of the version in use: people must be able to roll back.
            self.remove_unused()

    def pending(self) -> bool:
        """Return ``True`` if an update was interrupted and its version is not in use yet."""
        if not (self.path / "pending" / "update.json").exists():
            return False
        try:
            update = self._pending_update()
            if update.number not in self.numbers():
                return True
            saved = self.document(update.number)
            return saved.status == "accepted" and self.current() == update.parent
        except DamagedError:
            return True

    def pending_parent(self) -> int | None:
        """Return the version that an interrupted update starts from, if there is one."""
        with suppress(DamagedError):
            return self._pending_update().parent if self.pending() else None
        return None

    def has_saved(self, digest: str) -> bool:
        """Return ``True`` if the interrupted update has this digest and its version was saved."""
        if not (self.path / "pending" / "update.json").exists():
            return False
        update = self._pending_update()
        return update.digest == digest and update.number in self.numbers()

    def begin(self, parent: int | None, digest: str, settings: str = "") -> "Journal":
        """Begin an update, or go on with the interrupted one of the same images.

        Args:
            parent: the version that it starts from.
            digest: digest of its images.
            settings: the settings that it changes, in words.

        Raises:
            GraceError: if an update with other images was interrupted.
        """
        from grace.engine.journal import Journal

        folder = inside(self.path, "pending")
        number = self.next_number()
        wanted = _Pending(parent=parent, digest=digest, number=number, settings=settings)
        if self.pending() and self._pending_update() != wanted:
            raise GraceError(
                f"an update of '{self.path}' with other images or settings was interrupted",
                f"run that one again to finish it, or {to_drop(self.path)}",
            )
        if not self.pending():
            self.discard()
            folder.mkdir()
            text = strict_json.dump(wanted.model_dump())
            atomic.write_bytes(folder / "update.json", text)
        atomic.remove_leftovers(folder)
        return Journal(folder)

    def discard(self) -> None:
        """Drop the unfinished update, if there is one."""
        folder = inside(self.path, "pending")
        if folder.is_dir():
            # This file is removed first: without it the rest does not count as an update.
            atomic.remove(folder / "update.json")
            try:
                shutil.rmtree(folder)
            except RecursionError:
                raise DamagedError(f"'{folder}' holds folders too deep to remove") from None

    def _pending_update(self) -> _Pending:
        return read_model(inside(self.path, "pending") / "update.json", _Pending, 1 << 16)

    # The files of the versions.

    def current(self) -> int | None:
        """Return the number of the version in use; ``None``: the first update is not finished.

        Raises:
            DamagedError: if the pointer is damaged.
        """
        path = self.path / "current.json"
        if not path.exists() and not path.is_symlink():
            return None
        return read_model(path, _Pointer, 1 << 16).version

    def numbers(self) -> list[int]:
        """Return the numbers of all versions, ascending."""
        folder = inside(self.path, "versions")
        if not folder.is_dir():
            return []
        # Digits of other scripts and additional zeros are refused: grace never writes them.
        found = (re.fullmatch(r"([0-9]{4,20})\.json", entry.name) for entry in folder.iterdir())
        numbers = {match[1]: int(match[1]) for match in found if match}
        return sorted(number for text, number in numbers.items() if text == f"{number:04d}")

    def document(self, number: int) -> Document:
        """Read the document of one version.

        Raises:
            GraceError: if there is no such version.
            DamagedError: if it is damaged.
        """
        path = self._document_path(number)
        if not os.path.lexists(path):
            numbers = self.numbers()
            known = ", ".join(map(str, numbers[-20:])) or "none"
            more = "…, " if len(numbers) > 20 else ""
            raise GraceError(f"'{self.path}' has no version {number} (it has {more}{known})")
        data = read_small(path, f"'{path}'", MAX_BYTES)
        try:
            document = parse_document(data, f"'{path}'")
        except DamagedError as error:
            raise DamagedError(error.what, _OTHER_VERSION) from None
        if document.number != number:
            raise DamagedError(
                f"'{path}' is damaged: it says that it is version {document.number}", _OTHER_VERSION
            )
        return document

    def survey(self) -> Survey:
        """Read the documents of all versions; an old one that is damaged blocks nothing.

        Raises:
            DamagedError: if the version in use is damaged.
        """
        return self.steadily(self._survey)

    def _survey(self) -> Survey:
        current, documents, damaged = self.current(), [], dict[int, GraceError]()
        for number in self.numbers():
            try:
                documents.append(self.document(number))
            except (DamagedError, NewerFormatError) as error:
                if number == current:
                    raise
                damaged[number] = error
        if current is not None and all(made.number != current for made in documents):
            self.document(current)  # It is missing, which this refuses.
        return Survey(current, documents, damaged)

    def documents(self) -> Sequence[Document]:
        """Read the documents of all versions, in order; old ones that are damaged are left out."""
        return self.survey().documents

    def live_class_names(self) -> set[str]:
        """Return the names of all classes that a version knows and has not forgotten."""
        return {name for document in self.documents() for name in document.live_class_names}

    def steadily(self, read: Callable[[], T]) -> T:
        """Read from the home; begin anew if that fails because another process changed it.

        Readers hold no lock: what they read may be replaced and removed meanwhile.

        Args:
            read: reads, and raises an error if something is missing or damaged.
        """
        for _ in range(_NUM_TRIES):
            before = self._state()
            try:
                return read()
            except GraceError:
                if self._state() == before:
                    raise
        return read()

    def _state(self) -> object:
        """Return what every change of the home alters: files are replaced, never written."""
        found: list[tuple[str, int, int]] = []
        for folder in (self.path, self.path / "versions"):
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".json") and not atomic.is_leftover(Path(entry)):
                        status = entry.stat(follow_symlinks=False)
                        found.append((entry.name, status.st_ino, status.st_mtime_ns))
        return sorted(found)

    def read(self, ref: ObjectRef, what: str) -> "dict[str, Tensor]":
        """Read one object's tensors, of any shape, by name.

        Raises:
            DamagedError: if it is damaged.
        """
        from grace.base import tensors

        data = self._objects.get(ref.ref, f"{what} of '{self.path}'")
        return tensors.decode(data, f"{what} of '{self.path}'")[0]

    def outline(self, ref: ObjectRef, what: str) -> "dict[str, Tensor]":
        """Read the names, shapes and types of one object's tensors, on the meta device.

        Call it before ``read``: a forged object that nobody needs then costs no memory.

        Raises:
            DamagedError: if it is damaged.
        """
        from grace.base import tensors

        what = f"{what} of '{self.path}'"
        read = partial(self._objects.start, ref.ref, what)
        return tensors.outline(read, ref.bytes, what)[0]

    def put(self, kept: "Mapping[str, Tensor]") -> ObjectRef:
        """Store tensors of any shape, unless an equal object exists."""
        from grace.base import tensors

        return ObjectRef.of(self._objects.put(tensors.encode(kept)))

    def write(self, document: Document) -> None:
        """Write the document of a version whose objects are stored; replace an earlier one.

        Raises:
            GraceError: if it is too large to be read again.
        """
        data = document.dump()
        if len(data) > MAX_BYTES:
            raise GraceError(
                f"version {document.number} of '{self.path}' has a document of {len(data)} bytes, "
                f"more than the {MAX_BYTES} that can be read",
                "learn fewer classes",
            )
        atomic.write_bytes(self._document_path(document.number), data)

    def make_current(self, number: int) -> None:
        """Put a version in use."""
        text = _Pointer(version=number).model_dump()
        atomic.write_bytes(self.path / "current.json", strict_json.dump(text))

    def with_digest(self, digest: str) -> Iterator[Document]:
        """Yield the versions whose last update has this digest, newest first.

        Raises:
            DamagedError: if the version in use is damaged; other damaged versions are left out.
        """
        for number in reversed(self.numbers()):
            path = self._document_path(number)
            try:
                # A hundred documents need not be parsed at every update.
                if digest.encode() in read_small(path, f"'{path}'", MAX_BYTES):
                    document = self.document(number)
                    if document.digest == digest:
                        yield document
            except DamagedError:
                if number == self.current():
                    raise

    def drop(self, number: int) -> None:
        """Remove the document of a version; its objects stay until ``remove_unused``."""
        path = self._document_path(number)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            atomic.remove(path)

    def remove_unused(self) -> None:
        """Remove objects that no version refers to."""
        used: set[str] = set()
        # Everything that looks like a reference counts: nothing is lost, and a hundred documents
        # need not be parsed at every update.
        for number in self.numbers():
            path = self._document_path(number)
            try:
                data = read_small(path, f"'{path}'", MAX_BYTES)
            except DamagedError:
                if number == self.current():
                    raise
                continue  # An old version that cannot be read uses nothing.
            used.update(match.decode() for match in _REFERENCE.findall(data))
        self._objects.keep_only(used)

    def _document_path(self, number: int) -> Path:
        return inside(self.path, "versions") / f"{number:04d}.json"
