"""The files of a learner's versions: documents, objects, and the pointer to the version in use."""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, final

from pydantic import BaseModel, ConfigDict, Field

from grace.base import atomic, strict_json
from grace.base.errors import DamagedError, GraceError, NewerFormatError
from grace.base.files import inside, read_small
from grace.base.objects import ObjectStore
from grace.base.strict_json import read_model
from grace.learner.document import MAX_BYTES, Document, ObjectRef, parse_document

# torch is imported only where tensors are read or written, so that reading documents is quick.
if TYPE_CHECKING:
    from torch import Tensor

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


class VersionFiles:
    """The files of a home's versions; the base of ``ModelStore``.

    Args:
        path: directory of the home.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._objects = ObjectStore(path / "objects")

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
        return self.parsed(number, self.document_bytes(number))

    def document_bytes(self, number: int) -> bytes:
        """Read the file of one version's document.

        Raises:
            GraceError: if there is no such version.
            DamagedError: if it is no regular file, or too large.
        """
        path = self._document_path(number)
        if not os.path.lexists(path):
            numbers = self.numbers()
            known = ", ".join(map(str, numbers[-20:])) or "none"
            more = "…, " if len(numbers) > 20 else ""
            raise GraceError(f"'{self.path}' has no version {number} (it has {more}{known})")
        return read_small(path, f"'{path}'", MAX_BYTES)

    def parsed(self, number: int, data: bytes) -> Document:
        """Return the document of one version that a file's content is.

        Raises:
            DamagedError: if it is damaged.
        """
        path = self._document_path(number)
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

    def verify(self, document: Document) -> None:
        """Check the content of what a version predicts with; its images are not read.

        Raises:
            DamagedError: if an object is missing or has other content.
        """
        calibration = [document.calibration] if document.calibration else []
        for ref in (*document.parts.values(), *calibration):
            self._objects.get(ref.ref, f"an object of '{self.path}'")

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
