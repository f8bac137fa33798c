"""Files that are either the old version or the new one, never half of it."""

import contextlib
import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write text beside ``path``, flush it to the disk, and rename it into place.

    Raises:
        OSError: it cannot be written; ``path`` is as it was and nothing lies beside it.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    # Without this a power cut may forget the rename; some file systems refuse, which is no failure.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
