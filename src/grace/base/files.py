"""Read strangers' files (regular, of limited size), and stay inside our own folders."""

import errno
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from grace.base.errors import DamagedError, GraceError

if sys.platform == "win32":
    _FLAGS, _NO_LINKS = os.O_BINARY, 0
else:
    _FLAGS, _NO_LINKS = os.O_NONBLOCK | os.O_NOCTTY, os.O_NOFOLLOW


def read_small(path: Path, what: str, max_bytes: int, *, given: bool = False) -> bytes:
    """Read a regular file of limited size; the file may not be a link, its folders may.

    Args:
        path: the file. A pipe or device is refused without being opened, so that it can never be
            waited for.
        what: name of the file in messages.
        max_bytes: the largest size in bytes that is read.
        given: a person named the file: it may be a link, and one that is missing is no damage.

    Raises:
        DamagedError: if it is missing, a link, no regular file, larger, or changing.
        OSError: if the system refuses to read it, or there is no memory for it.
    """
    with _opened(path, what, follows_links=given) as (file, size):
        if size > max_bytes:
            verdict = "too large" if given else "damaged"
            expected = f"where at most {max_bytes} are expected"
            raise DamagedError(f"{what} is {verdict}: it has {size} bytes, {expected}")
        return _read(file, size, what)


def read_exactly(path: Path, what: str, num_bytes: int, first: int | None = None) -> bytes:
    """Read a regular file of known size; the file may not be a link, its folders may.

    Args:
        path: the file.
        what: name of the file in messages.
        num_bytes: its expected size, compared before the file is read.
        first: read this many bytes from its beginning, or all if it has fewer; ``None``: all.

    Raises:
        DamagedError: if it is missing, a link, no regular file, of another size, or changing.
        OSError: if the system refuses to read it, or there is no memory for it.
    """
    with _opened(path, what) as (file, size):
        if size != num_bytes:
            raise DamagedError(f"{what} is damaged: it has {size} bytes instead of {num_bytes}")
        return _read(file, size, what) if first is None else file.read(first)


def read_head(path: Path, what: str, num_bytes: int) -> bytes:
    """Read the first bytes, at most so many, of a regular file that a person named.

    Raises:
        DamagedError: if it is no regular file.
        OSError: if it is missing, or the system refuses to read it.
    """
    with _opened(path, what, follows_links=True) as (file, _):
        return file.read(num_bytes)


@contextmanager
def _opened(
    path: Path, what: str, *, follows_links: bool = False
) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file, and yield it with its size in bytes."""
    flags = os.O_RDONLY | _FLAGS | (0 if follows_links else _NO_LINKS)
    try:
        # Checked before opening, because opening a device or a pipe may have effects; checked again
        # after, because the file may have been replaced.
        _refuse_other_kinds(path.stat(follow_symlinks=follows_links).st_mode, what)
        handle = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        if follows_links:
            raise  # A person named it wrongly.
        raise DamagedError(f"{what} is missing") from None
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        _refuse_other_kinds(status.st_mode, what)
        yield file, status.st_size


def _refuse_other_kinds(mode: int, what: str) -> None:
    if stat.S_ISLNK(mode):
        raise DamagedError(f"{what} is damaged: it is a link, and links are not followed")
    if not stat.S_ISREG(mode):
        raise DamagedError(f"{what} is damaged: it is no regular file")


def _read(file: BinaryIO, size: int, what: str) -> bytes:
    try:
        data = file.read(size + 1)
    except MemoryError:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), what) from None
    if len(data) != size:
        raise DamagedError(f"{what} is damaged: its size changed while it was read")
    return data


def given_path(text: str) -> Path:
    """Return the path that a person wrote; ``~`` is a home folder if there is such a user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


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
    if inside(path.parent, path.name).exists() and not path.is_file():
        raise DamagedError(f"'{path}' is no regular file", "remove it")
    return path.open("ab")
