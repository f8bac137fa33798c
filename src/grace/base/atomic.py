"""Write files whole: after a crash a file is the old version or the new one, never half."""

import contextlib
import os
import re
import secrets
from pathlib import Path

_LEFTOVER = re.compile(r"\.grace-unfinished-[0-9a-f]{32}")


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
