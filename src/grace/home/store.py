"""A learner's home: its versions, the objects they consist of, and an unfinished update.

::

    MODEL/
      model.json           the settings and image shape it was created with
      current.json         the number of the version in use
      versions/0001.json   one document per version
      objects/<sha256>…    tensors and images, by content: versions share what did not change
      pending/             an unfinished update
      purge.json           a class whose images are being removed everywhere
      lock                 held by the process that changes the learner

Objects are written first, then the document, then the pointer; each file is written beside its
place and renamed. A reader sees the old version or the new one, never half of either.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from grace.home.creation import Creation as Creation
from grace.home.document import (
    FORMAT,
    MAX_BYTES,
    Document,
    ObjectRef,
    check_format,
    parse_document,
)
from grace.storage import atomic, strict_json
from grace.storage.lock import exclusive
from grace.storage.objects import ObjectStore
from grace.storage.reading import read_small
from grace.text.refusals import DamagedError, GraceError, Setting
from grace.text.validation import first_problem

# torch is imported only where tensors are read or written, so that reading documents is quick.
if TYPE_CHECKING:
    from torch import Tensor

    from grace.home.journal import Journal

_REFERENCE = re.compile(rb'"sha256"\s*:\s*"([0-9a-f]{64})"')

ModelT = TypeVar("ModelT", bound=BaseModel)

Put = Callable[[Mapping[str, "Tensor"]], ObjectRef]
"""Stores tensors (of any shape) by content and returns a reference."""


@final
class _Pointer(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    version: int = Field(ge=1)


@final
class _Pending(BaseModel):
    """The unfinished update: the version it starts from, its images, and its version's number."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    parent: int | None
    digest: str
    number: int


@final
class ModelStore:
    """The home of one learner: a directory that ``open`` finds or ``create`` makes."""

    def __init__(self, path: Path, creation: Creation) -> None:
        self.path = path
        self.creation = creation
        self._objects = ObjectStore(path / "objects")

    @classmethod
    def create(cls, path: Path, creation: Creation) -> Self:
        """Create the home of a learner that has learnt nothing yet.

        Raises:
            GraceError: if the directory exists already.
        """
        # Only what an interrupted creation left behind may be overwritten.
        if path.exists() and (
            not path.is_dir()
            or any(p.name != "versions" and not atomic.is_leftover(p) for p in path.iterdir())
        ):
            what = "is another learner" if (path / "model.json").exists() else "is no learner"
            raise GraceError(f"'{path}' exists already and {what}", "choose another name")
        (path / "versions").mkdir(parents=True, exist_ok=True)
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
        if not (path / "model.json").exists():
            raise GraceError(
                f"'{path}' is no learner (it has no model.json)",
                "give the directory that 'grace learn' made",
            )
        for name in ("versions", "objects", "pending"):
            if (path / name).is_symlink():
                raise DamagedError(f"'{path / name}' is a link, and links are not followed")
        what = f"'{path / 'model.json'}'"
        raw = strict_json.parse(read_small(path / "model.json", what, 1 << 22), what)
        if not isinstance(raw, dict):
            raise DamagedError(f"{what} is damaged: it describes no learner")
        check_format(raw.get("format"), FORMAT, what)
        return cls(path, _checked(Creation, raw, what))

    def current(self) -> int | None:
        """Return the number of the version in use; ``None``: the first update is not finished.

        Raises:
            DamagedError: if the pointer is damaged.
        """
        path = self.path / "current.json"
        if not path.exists() and not path.is_symlink():
            return None
        what = f"'{path}'"
        raw = strict_json.parse(read_small(path, what, 1 << 16), what)
        return _checked(_Pointer, raw, what).version

    def numbers(self) -> list[int]:
        """Return the numbers of all versions, ascending."""
        folder = self.path / "versions"
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
        document = parse_document(read_small(path, f"'{path}'", MAX_BYTES), f"'{path}'")
        if document.number != number:
            raise DamagedError(f"'{path}' is damaged: it says that it is version {document.number}")
        return document

    def documents(self) -> list[Document]:
        """Read the documents of all versions, in order."""
        return [self.document(number) for number in self.numbers()]

    def live_class_names(self) -> set[str]:
        """Return the names of all classes that a version knows and has not forgotten."""
        return {name for document in self.documents() for name in document.live_class_names}

    def read(self, ref: ObjectRef, what: str) -> "dict[str, Tensor]":
        """Read one object's tensors, of any shape, by name.

        Raises:
            DamagedError: if it is damaged.
        """
        from grace.storage import tensors

        data = self._objects.get(ref.ref, f"{what} of '{self.path}'")
        return tensors.decode(data, f"{what} of '{self.path}'")[0]

    def put(self, kept: "Mapping[str, Tensor]") -> ObjectRef:
        """Store tensors of any shape, unless an equal object exists."""
        from grace.storage import tensors

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

    def put_newest_in_use(self) -> None:
        """Put the newest version in use if it was accepted and follows the version in use.

        In a home without rollbacks its process was killed just before doing so.
        """
        numbers = self.numbers()
        newest = self.document(numbers[-1]) if numbers else None
        if newest and newest.status == "accepted" and newest.parent == self.current():
            self.make_current(newest.number)

    def next_number(self) -> int:
        """Return the number of the next version."""
        return max(self.numbers(), default=0) + 1

    def prune(self, keep: int) -> None:
        """Remove all versions but the one in use and the ``keep`` newest, and unused objects."""
        newest = self.numbers()[-keep:] if keep else []
        for number in self.numbers():
            if number not in newest and number != self.current():
                atomic.remove(self._document_path(number))
        self.remove_unused()

    def remove_unused(self) -> None:
        """Remove objects that no version refers to."""
        used: set[str] = set()
        # Everything that looks like a reference counts: nothing is lost, and a hundred documents
        # need not be parsed at every update.
        for number in self.numbers():
            path = self._document_path(number)
            data = read_small(path, f"'{path}'", MAX_BYTES)
            used.update(match.decode() for match in _REFERENCE.findall(data))
        self._objects.keep_only(used)

    def purge(self, name: str) -> None:
        """Drop a class's images from every version and mask it there.

        The class's name is written to a file first: the next process that changes the learner
        finishes an interrupted purge.

        Raises:
            GraceError: if an update was interrupted, which may still use the images.
        """
        if self.pending():
            raise GraceError(
                f"an update of '{self.path}' was interrupted",
                "run it again to finish it",
                setting=Setting("discard", "true"),
            )
        self.discard()
        atomic.write_bytes(self.path / "purge.json", strict_json.dump({"class": name}))
        self._finish_purge()

    def _finish_purge(self) -> None:
        path = self.path / "purge.json"
        if not path.exists():
            return
        raw = strict_json.parse(read_small(path, f"'{path}'", 1 << 16), f"'{path}'")
        if not isinstance(raw, dict) or not isinstance(raw.get("class"), str):
            raise DamagedError(f"'{path}' is damaged: it names no class")
        for document in self.documents():
            if raw["class"] in document.live_class_names:
                self.write(document.without(raw["class"]))
        self.remove_unused()
        atomic.remove(path)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock while the context lasts; first finish an interrupted purge.

        Raises:
            BusyError: if another process holds it.
        """
        with exclusive(self.path / "lock", f"'{self.path}'"):
            atomic.remove_leftovers(self.path)
            atomic.remove_leftovers(self.path / "versions")
            self._finish_purge()
            yield

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

    def has_saved(self, digest: str) -> bool:
        """Return ``True`` if the interrupted update has this digest and its version was saved."""
        if not (self.path / "pending" / "update.json").exists():
            return False
        update = self._pending_update()
        return update.digest == digest and update.number in self.numbers()

    def begin(self, parent: int | None, digest: str) -> "Journal":
        """Begin an update, or go on with the interrupted one of the same images.

        Raises:
            GraceError: if an update with other images was interrupted.
        """
        from grace.home.journal import Journal

        folder = self.path / "pending"
        wanted = _Pending(parent=parent, digest=digest, number=self.next_number())
        if self.pending():
            if self._pending_update() != wanted:
                raise GraceError(
                    f"an update of '{self.path}' with other images or settings was interrupted",
                    "run that one again to finish it",
                    setting=Setting("discard", "true"),
                )
        else:
            self.discard()
            folder.mkdir()
            text = strict_json.dump(wanted.model_dump())
            atomic.write_bytes(folder / "update.json", text)
        atomic.remove_leftovers(folder)
        return Journal(folder)

    def discard(self) -> None:
        """Drop the unfinished update, if there is one."""
        folder = self.path / "pending"
        if folder.is_symlink():
            raise DamagedError(f"'{folder}' is a link", "remove it")
        if folder.is_dir():
            # This file is removed first: without it the rest does not count as an update.
            atomic.remove(folder / "update.json")
            try:
                shutil.rmtree(folder)
            except RecursionError:
                raise DamagedError(f"'{folder}' holds folders too deep to remove") from None

    def _pending_update(self) -> _Pending:
        path = self.path / "pending" / "update.json"
        what = f"'{path}'"
        return _checked(_Pending, strict_json.parse(read_small(path, what, 1 << 16), what), what)

    def _document_path(self, number: int) -> Path:
        return self.path / "versions" / f"{number:04d}.json"


def _checked(model: type[ModelT], raw: object, what: str) -> ModelT:
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise DamagedError(f"{what} is damaged: {first_problem(error)}") from error
