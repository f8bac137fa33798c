"""Write files whole: after a crash a file is the old version or the new one, never half.

Objects are files of tensors named by the hash of their content, so that versions share equal files.
"""

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, final

from pydantic import BaseModel, ConfigDict, Field

from grace.base.errors import DamagedError
from grace.base.files import read_exactly

_LEFTOVER = re.compile(r"\.grace-unfinished-[0-9a-f]{32}")
_SUFFIX = ".safetensors"
_OBJECT = re.compile(rf"[0-9a-f]{{64}}{re.escape(_SUFFIX)}")


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole: write beside ``path``, flush to the disk, rename into place.

    A link at ``path`` is replaced, not followed.

    Raises:
        OSError: if it cannot be written; it names a file. ``path`` is unchanged and no file is left
            beside it.
    """
    beside = unfinished(path)
    try:
        # A link that someone put there is not followed.
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException as error:
        beside.unlink(missing_ok=True)
        if isinstance(error, OSError):
            # A full disk does not say which file it has no room for; nobody knows the name beside.
            error.filename, error.filename2 = str(path), None
        raise
    sync_folder(path.parent)


def unfinished(path: Path) -> Path:
    """Return a new name beside ``path`` for a file that is written before it is renamed.

    Nobody else gives a file such a name, so that what a killed process left can be deleted.
    """
    return path.with_name(f".grace-unfinished-{secrets.token_hex(16)}")


def write_text(path: Path, text: str) -> None:
    r"""Write text as UTF-8 with ``write_bytes``; ``\n`` is not changed.

    Raises:
        OSError: if it cannot be written; ``path`` is unchanged and no file is left beside it.
    """
    write_bytes(path, text.encode("utf-8"))


def remove(path: Path) -> None:
    """Delete a file if it exists, and flush its folder.

    Raises:
        OSError: if it cannot be removed.
    """
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Delete the unfinished files of killed processes in a folder.

    No other process may write into the folder at the same time: its files would be deleted too.

    Raises:
        OSError: if the folder cannot be read, or a file in it cannot be removed.
    """
    with os.scandir(folder) as entries:
        found = [entry.path for entry in entries if is_leftover(Path(entry))]
    for path in found:
        Path(path).unlink(missing_ok=True)
    if found:
        sync_folder(folder)


def is_leftover(path: Path) -> bool:
    """Return ``True`` if a path has the name of an unfinished file."""
    return bool(_LEFTOVER.fullmatch(path.name)) and (path.is_symlink() or not path.is_dir())


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to the disk, so that renames and deletions survive a power cut."""
    # Some file systems do not support this; that is not an error.
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class Ref(BaseModel):
    """A reference to an object: SHA-256 of its bytes in hexadecimal digits, and their number."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    bytes: Annotated[int, Field(ge=0, strict=True)]


@final
class ObjectStore:
    """A folder of immutable files ``<sha256>.safetensors``.

    Args:
        folder: the folder itself; the first ``put`` creates it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def put(self, data: bytes) -> Ref:
        """Store bytes as an object; bytes that are stored already are not written again.

        Raises:
            DamagedError: if the folder is a link.
            OSError: if they cannot be written; no half-written file is left.
        """
        ref = Ref(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
        path = self._path(ref)
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True)
            sync_folder(self._folder.parent)
        try:
            is_there = read_exactly(path, "an object", ref.bytes) == data
        except (DamagedError, OSError):
            is_there = False  # A damaged file is written again.
        if is_there:
            # The process that renamed it may have been killed before it flushed the folder.
            sync_folder(self._folder)
        else:
            write_bytes(path, data)
        return ref

    def get(self, ref: Ref, what: str) -> bytes:
        """Read an object and check its hash.

        Args:
            ref: reference to the object.
            what: name of the object in messages.

        Raises:
            DamagedError: if it is missing, a link, no regular file, or has other content.
            OSError: if the system refuses to read it.
        """
        data = read_exactly(self._path(ref), what, ref.bytes)
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            raise DamagedError(f"{what} is damaged: its content does not match its SHA-256")
        return data

    def start(self, ref: Ref, what: str, length: int) -> bytes:
        """Read the first bytes of an object as ``get`` does; only its size is checked."""
        return read_exactly(self._path(ref), what, ref.bytes, length)

    def names(self) -> set[str]:
        """List the hashes of all stored objects; their content is not checked.

        Raises:
            DamagedError: if the folder is a link.
        """
        self._refuse_linked_folder()
        if not self._folder.is_dir():
            return set()
        with os.scandir(self._folder) as entries:
            # A link counts, so that keep_only removes it; get refuses it.
            names = [e.name for e in entries if not e.is_dir(follow_symlinks=False)]
        return {name.removesuffix(_SUFFIX) for name in names if _OBJECT.fullmatch(name)}

    def keep_only(self, hashes: Iterable[str]) -> None:
        """Delete all other objects, and the unfinished files of killed processes.

        Files of other names are not touched. No other process may write at the same time.

        Raises:
            DamagedError: if the folder is a link.
            OSError: if a file cannot be removed.
        """
        others = self.names() - set(hashes)
        if self._folder.is_dir():
            for sha256 in sorted(others):
                (self._folder / f"{sha256}{_SUFFIX}").unlink(missing_ok=True)
            remove_leftovers(self._folder)
            sync_folder(self._folder)

    def _path(self, ref: Ref) -> Path:
        self._refuse_linked_folder()
        return self._folder / f"{ref.sha256}{_SUFFIX}"

    def _refuse_linked_folder(self) -> None:
        if self._folder.is_symlink():
            raise DamagedError(f"the folder {self._folder} is damaged: it is a link")
