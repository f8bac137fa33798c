"""A lock file, which one process at a time can hold."""

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grace.base.errors import BusyError, DamagedError

BUSY = "is being changed by another process"
"""What a refusal says of a thing that is locked."""

_NUM_TRIES = 5
"""How often a held lock is tried: its holder may only be asking who holds it."""

if sys.platform == "win32":
    import msvcrt

    _TAKE, _ASK, _RELEASE = msvcrt.LK_NBLCK, msvcrt.LK_NBLCK, msvcrt.LK_UNLCK
    _READING = _FLAGS = os.O_RDWR

    def _lock(handle: int, how: int) -> None:
        # Others cannot read locked bytes: lock one far behind the pid.
        os.lseek(handle, 2**30, os.SEEK_SET)
        msvcrt.locking(handle, how, 1)

else:
    import fcntl

    _TAKE, _ASK = fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_SH | fcntl.LOCK_NB
    _RELEASE = fcntl.LOCK_UN
    _READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    _FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    _lock = fcntl.flock


@contextmanager
def exclusive(path: Path, what: str, num_tries: int = _NUM_TRIES) -> Iterator[None]:
    """Hold a lock while the context lasts; raise an error if another process holds it.

    The lock ends with the process, even with a killed one. Only its holder may delete the file, as
    the last thing that it does: whoever waited for the deleted file notices, and opens the new one.

    Args:
        path: the lock file, created if it is missing.
        what: name of the locked thing in messages.
        num_tries: the lock is tried every hundredth of a second. More: others are waited for.

    Raises:
        BusyError: if the lock is held already.
        DamagedError: if the lock file is a link or no regular file.
        OSError: if the lock file cannot be opened.
    """
    handle = _taken(path, what, num_tries)
    try:
        _note_holder(handle)
        yield
    finally:
        # Explicitly: a forked child that holds the same handle would keep the lock otherwise.
        _lock(handle, _RELEASE)
        os.close(handle)


def holder(path: Path) -> str | None:
    """Return the id of the process that holds a lock; ``None``: no process does.

    To find out, the lock is held for a moment, in which others wait for it. Nothing is written, so
    that a learner that may only be read can be asked.

    Args:
        path: the lock file.
    """
    if path.is_symlink() or not path.is_file():
        return None
    try:
        handle = os.open(path, _READING)
    except FileNotFoundError:  # Its holder has just deleted it.
        return None
    try:
        _lock(handle, _ASK)
        _lock(handle, _RELEASE)
    except (BlockingIOError, PermissionError):
        return _noted_holder(handle)
    finally:
        os.close(handle)
    return None


def _taken(path: Path, what: str, num_tries: int) -> int:
    """Open the lock file and take the lock on it; return its handle."""
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise DamagedError(f"{what} is damaged: its lock {path.name!r} is no regular file")
    pid = "unknown"
    for _ in range(num_tries):
        handle = os.open(path, _FLAGS | os.O_CREAT, 0o666)
        with contextlib.suppress(BlockingIOError, PermissionError, FileNotFoundError):
            _lock(handle, _TAKE)
            # A file that its holder deleted after it was opened here locks nothing any more.
            if os.path.samestat(path.lstat(), os.fstat(handle)):
                return handle
        pid = _noted_holder(handle)
        os.close(handle)
        time.sleep(0.01)
    raise BusyError(f"{what} {BUSY} (pid {pid})", "wait for it to end")


def _note_holder(handle: int) -> None:
    # This is only information: on a full disk a lock must still be possible, to free space. A
    # file with two names may belong elsewhere and is not written.
    if os.fstat(handle).st_nlink > 1:
        return
    with contextlib.suppress(OSError):
        os.lseek(handle, 0, os.SEEK_SET)
        os.ftruncate(handle, 0)
        os.write(handle, b"%d\n" % os.getpid())


def _noted_holder(handle: int) -> str:
    os.lseek(handle, 0, os.SEEK_SET)
    found = re.fullmatch(rb"(\d{1,10})\n", os.read(handle, 16))
    return found[1].decode() if found else "unknown"
