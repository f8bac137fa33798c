"""Files of tensors named by the hash of their content, so that versions share equal files."""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, final

from pydantic import BaseModel, ConfigDict, Field

from grace.base.atomic import remove_leftovers, sync_folder, write_bytes
from grace.base.errors import DamagedError
from grace.base.files import read_exactly

_SUFFIX = ".safetensors"
_HASH = re.compile(r"[0-9a-f]{64}")


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
        self._refuse_linked_folder()
        ref = Ref(sha256=hashlib.sha256(data).hexdigest(), bytes=len(data))
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True)
            sync_folder(self._folder.parent)
        if self._has(ref, data):
            # The process that renamed it may have been killed before it flushed the folder.
            sync_folder(self._folder)
        else:
            write_bytes(self._path(ref.sha256), data)
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
        self._refuse_linked_folder()
        data = read_exactly(self._path(ref.sha256), what, ref.bytes)
        if hashlib.sha256(data).hexdigest() != ref.sha256:
            raise DamagedError(f"{what} is damaged: its content does not match its SHA-256")
        return data

    def start(self, ref: Ref, what: str, length: int) -> bytes:
        """Read the first bytes of an object; only its size is checked.

        Args:
            ref: reference to the object.
            what: name of the object in messages.
            length: number of bytes.

        Raises:
            DamagedError: as ``get``.
            OSError: if the system refuses to read it.
        """
        self._refuse_linked_folder()
        return read_exactly(self._path(ref.sha256), what, ref.bytes, length)

    def names(self) -> set[str]:
        """List the hashes of all stored objects; their content is not checked.

        Raises:
            DamagedError: the folder is a link.
        """
        self._refuse_linked_folder()
        if not self._folder.is_dir():
            return set()
        with os.scandir(self._folder) as entries:
            # A link counts, so that keep_only removes it; get refuses it.
            names = {e.name for e in entries if not e.is_dir(follow_symlinks=False)}
        stems = {name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)}
        return {stem for stem in stems if _HASH.fullmatch(stem)}

    def keep_only(self, hashes: Iterable[str]) -> None:
        """Delete all other objects, and the unfinished files of killed processes.

        Files of other names are not touched. No other process may write at the same time.

        Raises:
            DamagedError: if the folder is a link.
            OSError: if a file cannot be removed.
        """
        kept = set(hashes)
        others = self.names() - kept
        if not self._folder.is_dir():
            return
        for sha256 in sorted(others):
            self._path(sha256).unlink(missing_ok=True)
        remove_leftovers(self._folder)
        sync_folder(self._folder)

    def _has(self, ref: Ref, data: bytes) -> bool:
        # Compare the content: a damaged file is written again.
        try:
            return read_exactly(self._path(ref.sha256), "an object", ref.bytes) == data
        except (DamagedError, OSError):
            return False

    def _path(self, sha256: str) -> Path:
        return self._folder / f"{sha256}{_SUFFIX}"

    def _refuse_linked_folder(self) -> None:
        if self._folder.is_symlink():
            raise DamagedError(f"the folder {self._folder} is damaged: it is a link")
