"""Paths inside our own directories: no link on the way is followed.

The directory that a user names may be a link or lie behind one; what lies in it is ours, and a link
there was put there by someone else. Everything that lists, writes or deletes in a folder of ours
gets the folder's path from here.
"""

import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

from grace.base.refusals import DamagedError, GraceError

_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND
if sys.platform != "win32":
    _APPEND |= os.O_NOFOLLOW | os.O_NONBLOCK


def inside(root: Path, *names: str) -> Path:
    """Return the path of a folder or file beneath a directory of ours.

    Args:
        root: the directory; it may be a link.
        names: names of the folders on the way and of the last one, which need not exist.

    Raises:
        DamagedError: if one of them is a link.
    """
    path = root
    for name in names:
        assert is_plain_name(name), name
        path /= name
        if path.is_symlink():
            raise DamagedError(f"'{path}' is a link, and links are not followed", "remove it")
    return path


def is_plain_name(name: str) -> bool:
    """Return ``True`` for the name of one file or folder, ``False`` for a path such as "../x"."""
    return name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}


def refuse_path(name: str, what: str) -> str:
    """Return a name that becomes a folder's; refuse one that leads elsewhere.

    Args:
        name: the name.
        what: what has this name, in messages.

    Raises:
        GraceError: if it is a path.
    """
    if not is_plain_name(name):
        raise GraceError(
            f"{what} '{name}' is a path, and a folder is named after it",
            "use a name without slashes",
        )
    return name


def open_to_append(path: Path) -> BinaryIO:
    """Open a regular file of ours to append to it; create it if it is missing.

    Raises:
        DamagedError: if it is a link or no regular file.
        OSError: if it cannot be opened.
    """
    inside(path.parent, path.name)
    handle = os.open(path, _APPEND, 0o666)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DamagedError(f"'{path}' is no regular file", "remove it")
    return os.fdopen(handle, "ab")
