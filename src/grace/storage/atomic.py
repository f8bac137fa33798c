"""Files that are either the old version or the new one, never half of it."""

import contextlib
import os
import re
from pathlib import Path

_LEFTOVER = re.compile(r"\..+\.\d+\.tmp", re.DOTALL)


def write_bytes(path: Path, data: bytes) -> None:
    """Write data beside ``path``, flush it to the disk, and rename it into place.

    A link at ``path`` is replaced, not followed.

    Raises:
        OSError: it cannot be written; ``path`` is as it was and nothing lies beside it.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # The name can be guessed, so a link may have been planted there: never written through.
    beside.unlink(missing_ok=True)
    try:
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    r"""Write text as UTF-8, its ``\n`` as they are, as ``write_bytes`` does.

    Raises:
        OSError: it cannot be written; ``path`` is as it was and nothing lies beside it.
    """
    write_bytes(path, text.encode("utf-8"))


def remove(path: Path) -> None:
    """Remove a file, if it is there, for good.

    Raises:
        OSError: it cannot be removed.
    """
    path.unlink(missing_ok=True)
    sync_folder(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove what writes into a folder left there when their process was killed.

    Nobody else may be writing into the folder meanwhile: their files would go too.

    Raises:
        OSError: the folder cannot be read, or a file in it cannot be removed.
    """
    with os.scandir(folder) as entries:
        found = [entry.path for entry in entries if is_leftover(Path(entry))]
    for path in found:
        Path(path).unlink(missing_ok=True)
    if found:
        sync_folder(folder)


def is_leftover(path: Path) -> bool:
    """Whether something is what a killed process was writing, by its name."""
    return bool(_LEFTOVER.fullmatch(path.name)) and (path.is_symlink() or not path.is_dir())


def sync_folder(path: Path) -> None:
    """Flush a folder's entries to the disk: renames and removals outlive a power cut."""
    # Some file systems refuse, which is no failure.
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
