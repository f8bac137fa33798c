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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, final

from pydantic import Field

from grace.base import atomic, strict_json
from grace.base.atomic import ObjectStore, Ref
from grace.base.errors import DamagedError, GraceError, NewerFormatError, not_there
from grace.base.files import inside, read_small
from grace.base.lock import exclusive
from grace.base.strict_json import read_model
from grace.base.words import did_you_mean_one_of
from grace.learner.document import Creation, Document, parse, remedied
from grace.learner.gate import Strict
from grace.learner.history import Change, History, now, unnoted
from grace.settings.experiment import ExperimentSettings

# torch is imported only where tensors are read or written, so that reading documents is quick.
if TYPE_CHECKING:
    from torch import Tensor

    from grace.engine.journal import Journal

Put = Callable[[Mapping[str, "Tensor"]], Ref]
"""Stores tensors (of any shape) by content and returns a reference."""
OTHER_VERSION = "restore it from a backup, or roll back to another version"
"""Remedy for a version that is damaged."""
_REFERENCE = re.compile(rb'"sha256"\s*:\s*"([0-9a-f]{64})"')
_VERSION = re.compile(r"([0-9]{4}|[1-9][0-9]{4,19})\.json")
"""Name of a document. Additional zeros are refused: grace never writes them."""
_NUM_TRIES = 100
"""Times that a reader begins anew beside a process that changes the home."""

T = TypeVar("T")


@final
class _Pointer(Strict):
    version: int = Field(ge=1, strict=True)


@final
@dataclass(frozen=True)
class Survey:
    """What can be read of a home's versions.

    Args:
        in_use: the version in use; ``None``: the first update is not finished.
        documents: the versions that can be read, in order, the one in use among them.
        damaged: the errors of old versions that cannot be read, by number.
    """

    in_use: Document | None
    documents: Sequence[Document]
    damaged: Mapping[int, GraceError]


@final
class Pending(Strict):
    """The unfinished update: the version it starts from, its images, and its version's number."""

    parent: int | None = None
    digest: str = ""
    number: int = 0
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
            text = strict_json.dump(creation.model_dump(mode="json"))
            atomic.write_bytes(path / "model.json", text)
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
        return cls(path, _read_creation(path))

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock while the context lasts; first finish and remove what was cut off.

        Raises:
            BusyError: if another process holds it.
            GraceError: if the learner has been replaced by another one.
        """
        with exclusive(self.path / "lock", f"'{self.path}'"):
            if _read_creation(self.path) != self.creation:
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

    # The changes other than updates. All but ``prune`` are made while ``changing`` lasts.

    def prune(self, *, keep: int | None = None, max_mb: float = 0) -> Sequence[int]:
        """Remove versions and the objects that only they use; what was learnt stays in the history.

        Damaged versions go first. The version in use stays, and so does what an unfinished update
        starts from.

        Args:
            keep: number of newest versions that stay. ``None``: ``max_mb`` decides.
            max_mb: megabytes (10⁶ bytes) for all versions together; the oldest go until the others
                take no more, and the one before the version in use goes last.

        Returns:
            The numbers of the removed versions.

        Raises:
            GraceError: for a negative ceiling.
        """
        if not max_mb >= 0:
            raise GraceError(f"{max_mb:g} MB for all versions", "give a number of megabytes")
        with self.changing():
            survey, update = self.survey(), self.pending()
            left = {made.number: made for made in survey.documents}
            if keep is None and bytes_of(left.values()) <= max_mb * 1_000_000:
                return []
            stays = {*self.numbers()[-keep:]} if keep else set[int]()
            stays |= {own for own in (self.current(), update and update.parent) if own}
            before = survey.in_use.parent if survey.in_use else None
            for number in sorted(left.keys() - stays, key=lambda own: (own == before, own)):
                if keep is None and bytes_of(left.values()) <= max_mb * 1_000_000:
                    break
                del left[number]
            gone = [number for number in self.numbers() if number not in left]
            if gone:
                self._carry_out(Change(kind="prune", date=now(), versions=tuple(gone)))
        return gone

    def roll_back(self, number: int) -> None:
        """Put another version in use; it must be there."""
        before = None
        with suppress(DamagedError):  # It is what people roll back from.
            before = self.current()
        if number != before:
            self._carry_out(Change(kind="rollback", date=now(), version=number, was_in_use=before))

    def add(self, document: Document, *, is_set: bool = False) -> None:
        """Save a version whose objects are stored; put it in use if it is accepted.

        Args:
            document: the version.
            is_set: it learnt nothing: only settings differ from the version in use. There is no
                unfinished update then that would put it in use after an interruption.
        """
        if not is_set:
            self.write(document)
            if document.status == "accepted":
                self.make_current(document.number)
            self.note_versions()
            return
        change = Change(kind="set", date=now(), version=document.number, settings=document.changed)
        assert self.log.unfinished() is None
        self.log.begin(change)
        self.write(document)
        self._finish(change)

    def knowing(self, name: str) -> list[int]:
        """Return the numbers of the versions that still know a class.

        Raises:
            GraceError: if no version ever had the class, or it may not be forgotten now.
        """
        survey = self.survey()
        known = [made for made in survey.documents if name in made.live_class_names]
        if not any(name in made.class_names for made in survey.documents):
            live = dict.fromkeys(n for made in survey.documents for n in made.live_class_names)
            raise GraceError(
                f"'{self.path}' has no class '{name}'{did_you_mean_one_of(name, live)}"
            )
        if self.pending():
            raise GraceError(
                f"an update of '{self.path}' was interrupted and may still use the images",
                f"run it again to finish it, or {to_drop(self.path)}",
            )
        if survey.in_use and survey.in_use.live_class_names == [name]:
            raise GraceError(
                f"'{name}' is the last class of '{self.path}'", "teach it another first"
            )
        return [made.number for made in known]

    def purge(self, name: str) -> Change:
        """Drop a class's images from every version and mask it there; return what was done.

        An old version that is damaged cannot be masked: it is removed.

        Raises:
            GraceError: as ``knowing``.
            NewerFormatError: if a version was made by a newer grace.
        """
        versions, damaged = self.knowing(name), self.survey().damaged
        self.discard()
        for error in damaged.values():
            if isinstance(error, NewerFormatError):
                raise error
        change = Change(
            kind="forget",
            date=now(),
            class_name=name,
            versions=tuple(versions),
            damaged=tuple(sorted(damaged)),
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
        match change.kind:
            case "rollback" | "set":
                assert change.version is not None
                # A set may have been cut off before its version was saved.
                if change.version in self.numbers():
                    self.make_current(change.version)
                    self.note_versions()
            case "prune":
                for number in sorted({*change.versions} - {self.current()}):
                    self.drop(number)
            case "forget":
                try:
                    survey = self.survey()
                except DamagedError:
                    return
                for number in survey.damaged:
                    self.drop(number)
                for document in survey.documents:
                    if change.class_name in document.live_class_names:
                        self.write(document.without(change.class_name))
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
        noted = {change.version for change in earlier if change.update}
        documents: list[Document] = []
        for number in self.numbers():
            if number not in noted:
                with suppress(GraceError):  # A damaged one blocks nothing.
                    documents.append(self.document(number))
        return unnoted(documents, earlier)

    def _tidy(self) -> None:
        """Remove what an interrupted process left and nobody needs."""
        if self._begun() is None:
            self.discard()
        elif self.pending() is None:
            # Its version is saved; the file still tells that this update is done.
            for entry in (self.path / "pending").iterdir():
                if entry.name != "update.json":
                    entry.unlink()
        with suppress(DamagedError):  # Of the version in use: people must be able to roll back.
            self.remove_unused()

    # The unfinished update.

    def pending(self) -> Pending | None:
        """Return the interrupted update whose version is not in use yet; ``None``: there is none.

        If its file is damaged it is an update of unknown images.
        """
        update = self._begun()
        with suppress(DamagedError):
            if update is not None and update.number in self.numbers():
                saved = self.document(update.number)
                if saved.status == "rejected" or self.current() != update.parent:
                    return None
        return update

    def has_saved(self, digest: str) -> bool:
        """Return ``True`` if the interrupted update has this digest and its version was saved."""
        update = self._begun()
        return update is not None and update.digest == digest and update.number in self.numbers()

    def _begun(self) -> Pending | None:
        path = inside(self.path, "pending") / "update.json"
        if not path.exists():
            return None
        try:
            return read_model(path, Pending, 1 << 16)
        except DamagedError:
            return Pending()

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

        folder, number = inside(self.path, "pending"), self.next_number()
        wanted = Pending(parent=parent, digest=digest, number=number, settings=settings)
        interrupted = self.pending()
        if interrupted not in (None, wanted):
            raise GraceError(
                f"an update of '{self.path}' with other images or settings was interrupted",
                f"run that one again to finish it, or {to_drop(self.path)}",
            )
        if interrupted is None:
            self.discard()
            folder.mkdir()
            atomic.write_bytes(folder / "update.json", strict_json.dump(wanted.model_dump()))
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

    # The files of the versions.

    def current(self) -> int | None:
        """Return the number of the version in use; ``None``: the first update is not finished.

        Raises:
            DamagedError: if the pointer is damaged.
        """
        path = self.path / "current.json"
        if not path.exists() and not path.is_symlink():
            return None
        with remedied("roll back to a version by 'grace rollback'"):
            return read_model(path, _Pointer, 1 << 16).version

    def numbers(self) -> list[int]:
        """Return the numbers of all versions, ascending."""
        folder = inside(self.path, "versions")
        if not folder.is_dir():
            return []
        paths = (path for path in folder.iterdir() if _VERSION.fullmatch(path.name))
        return sorted(int(path.stem) for path in paths)

    def document(self, number: int) -> Document:
        """Read the document of one version.

        Raises:
            GraceError: if there is no such version.
            DamagedError: if it is damaged.
        """
        path = self._document_path(number)
        if not os.path.lexists(path):
            known = ", ".join(map(str, self.numbers())) or "none"
            raise GraceError(f"'{self.path}' has no version {number} (it has {known})")
        with remedied(OTHER_VERSION):
            data = read_small(path, f"'{path}'", strict_json.MAX_BYTES)
            document = parse(Document, data, f"'{path}'")
            if document.number != number:
                raise DamagedError(
                    f"'{path}' is damaged: it says that it is version {document.number}"
                )
        return document

    def survey(self) -> Survey:
        """Read the documents of all versions; an old one that is damaged blocks nothing.

        Raises:
            DamagedError: if the version in use is damaged.
        """
        return self.steadily(self._survey)

    def _survey(self) -> Survey:
        current, documents, damaged = self.current(), dict[int, Document](), dict[int, GraceError]()
        for number in self.numbers():
            try:
                documents[number] = self.document(number)
            except (DamagedError, NewerFormatError) as error:
                if number == current:
                    raise
                damaged[number] = error
        # One that is missing is refused.
        in_use = current and (documents.get(current) or self.document(current))
        return Survey(in_use or None, [*documents.values()], damaged)

    def with_digest(self, digest: str) -> list[Document]:
        """Return the versions whose last update has this digest, newest first.

        Raises:
            DamagedError: if the version in use is damaged; other damaged versions are left out.
        """
        found: list[Document] = []
        for number, data in self._texts():
            if digest.encode() in data:
                with suppress(DamagedError):
                    found.append(self.document(number))
        return [made for made in reversed(found) if made.digest == digest]

    def _texts(self) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes of all documents: a hundred need not be parsed at every update.

        Raises:
            DamagedError: if that of the version in use is damaged; others are left out.
        """
        for number in self.numbers():
            path = self._document_path(number)
            try:
                data = read_small(path, f"'{path}'", strict_json.MAX_BYTES)
            except DamagedError:
                if number == self.current():
                    raise
            else:
                yield number, data

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
        found: dict[Path, tuple[int, int]] = {}
        for path in [*self.path.glob("*.json"), *(self.path / "versions").glob("*.json")]:
            with suppress(OSError):
                status = path.lstat()
                found[path] = (status.st_ino, status.st_mtime_ns)
        return found

    def read(self, ref: Ref, what: str) -> "dict[str, Tensor]":
        """Read one object's tensors, of any shape, by name.

        Raises:
            DamagedError: if it is damaged.
        """
        from grace.base import tensors

        return tensors.decode(self._objects.get(ref, what), what)[0]

    def outline(self, ref: Ref, what: str) -> "dict[str, Tensor]":
        """Read the names, shapes and types of one object's tensors, on the meta device.

        Call it before ``read``: a forged object that nobody needs then costs no memory.

        Raises:
            DamagedError: if it is damaged.
        """
        from grace.base import tensors

        return tensors.outline(partial(self._objects.start, ref, what), ref.bytes, what)[0]

    def put(self, kept: "Mapping[str, Tensor]") -> Ref:
        """Store tensors of any shape, unless an equal object exists."""
        from grace.base import tensors

        return self._objects.put(tensors.encode(kept))

    def write(self, document: Document) -> None:
        """Write the document of a version whose objects are stored; replace an earlier one.

        Raises:
            GraceError: if it is too large to be read again.
        """
        path = self._document_path(document.number)
        try:
            atomic.write_bytes(path, document.dump())
        except GraceError as error:
            raise error.found_in(f"'{path}'") from None

    def make_current(self, number: int) -> None:
        """Put a version in use."""
        text = _Pointer(version=number).model_dump()
        atomic.write_bytes(self.path / "current.json", strict_json.dump(text))

    def drop(self, number: int) -> None:
        """Remove the document of a version; its objects stay until ``remove_unused``."""
        path = self._document_path(number)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            atomic.remove(path)

    def remove_unused(self) -> None:
        """Remove objects that no version refers to."""
        # Everything that looks like a reference counts, so that nothing is lost.
        found = (_REFERENCE.findall(data) for _, data in self._texts())
        self._objects.keep_only(match.decode() for matches in found for match in matches)

    def _document_path(self, number: int) -> Path:
        return inside(self.path, "versions") / f"{number:04d}.json"


def bytes_of(documents: Collection[Document]) -> int:
    """Return the bytes of versions together: their documents, and shared objects once."""
    objects = {ref.sha256: ref.bytes for made in documents for ref in made.refs}
    return sum(objects.values()) + sum(len(made.dump()) for made in documents)


def refuse_taken(path: Path) -> None:
    """Refuse a directory that holds more than an interrupted creation leaves behind.

    A directory inside another learner is refused too.

    Raises:
        GraceError: naming what it is.
    """
    for parent in path.resolve().parents:
        # Other programs write a file of this name, too.
        if (parent / "model.json").exists() and (parent / "versions").is_dir():
            raise GraceError(f"'{path}' lies in the learner '{parent}'", "choose a place outside")
    if path.exists() and (
        not path.is_dir()
        or any(
            entry.name not in ("lock", "versions") and not atomic.is_leftover(entry)
            for entry in path.iterdir()
        )
    ):
        what = "is another learner" if (path / "model.json").exists() else "is no learner"
        raise GraceError(f"'{path}' exists already and {what}", "choose another name")


def _read_creation(path: Path) -> Creation:
    """Read ``model.json`` of a learner's directory.

    Raises:
        NewerFormatError: if a newer grace made it.
        DamagedError: if it is damaged.
    """
    what = f"'{path / 'model.json'}'"
    with remedied("restore it from a backup"):
        return parse(Creation, read_small(path / "model.json", what, 1 << 22), what)
