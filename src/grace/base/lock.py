"""A lock file, which one process at a time can hold."""

import contextlib
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from grace.base.errors import BusyError, DamagedError

BUSY = "is being changed by another process"
"""What a refusal says of a thing that is locked."""

_FLAGS = os.O_RDWR | os.O_CREAT
_NUM_TRIES = 5

if sys.platform == "win32":
    import msvcrt

    # On Windows others cannot read locked bytes: lock one far behind the pid.
    _PLACE = 2**30

    _READING = os.O_RDWR

    def _take(handle: int) -> None:
        os.lseek(handle, _PLACE, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

    _take_to_read = _take

    def _release(handle: int) -> None:
        os.lseek(handle, _PLACE, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    _READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    _FLAGS |= os.O_NOFOLLOW | os.O_NONBLOCK

    def _take(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _take_to_read(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def _release(handle: int) -> None:
        # Explicitly: a forked child that holds the same handle would keep the lock otherwise.
        fcntl.flock(handle, fcntl.LOCK_UN)


@contextmanager
def shared(path: Path, what: str, seconds: float = 0) -> Iterator[None]:
    """Hold a lock that several processes may hold at once, but not beside an exclusive one.

    On Windows one process at a time can hold it. Errors are those of ``exclusive``.

    Args:
        path: the lock file, created if it is missing.
        what: name of the locked thing in messages.
        seconds: time to wait for the end of a process that holds it alone. Longer: fewer errors
            beside short changes, a later one beside long ones.
    """
    handle = _taken(path, what, _take_to_read, seconds)
    try:
        _note(handle, b"")  # The process that held it alone before has it no more.
        yield
    finally:
        _release(handle)
        os.close(handle)


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Hold a lock while the context lasts; raise an error at once if it is held already.

    The lock ends with the process, even with a killed one. Only its holder may delete the file, as
    the last thing that it does: whoever waited for the deleted file notices, and opens the new one.

    Args:
        path: the lock file, created if it is missing.
        what: name of the locked thing in messages.

    Raises:
        BusyError: if the lock is held already.
        DamagedError: if the lock file is a link or no regular file.
        OSError: if the lock file cannot be opened.
    """
    handle = _taken(path, what, _take)
    try:
        try:
            _note(handle, b"%d\n" % os.getpid())
            yield
        finally:
            _release(handle)
    finally:
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
        _take_to_read(handle)
        _release(handle)
    except (BlockingIOError, PermissionError):
        return _holder(handle)
    finally:
        os.close(handle)
    return None


def _taken(path: Path, what: str, take: Callable[[int], None], seconds: float = 0) -> int:
    """Open the lock file and take the lock on it; return its handle."""
    patience, deadline = _NUM_TRIES, time.monotonic() + seconds
    while True:
        handle = _open(path, what)
        try:
            take(handle)
            if _is_at(path, handle):
                return handle
            # Its holder deleted it after this process had opened it: it locks nothing any more.
            _release(handle)
        except (BlockingIOError, PermissionError):
            patience -= 1
            if patience > 0 or time.monotonic() < deadline:  # Someone may only be asking who.
                os.close(handle)
                time.sleep(0.01)
                continue
            text = f"{what} {BUSY} (pid {_holder(handle)})"
            os.close(handle)
            raise BusyError(text, "wait for it to end") from None
        os.close(handle)


def _is_at(path: Path, handle: int) -> bool:
    """Return ``True`` if a path still leads to an open file."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(handle))


def _open(path: Path, what: str) -> int:
    if path.is_symlink():
        raise DamagedError(f"{what} is damaged: its lock {path.name!r} is a link")
    try:
        handle = os.open(path, _FLAGS, 0o666)
    except IsADirectoryError:
        raise DamagedError(f"{what} is damaged: its lock {path.name!r} is a folder") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise DamagedError(f"{what} is damaged: its lock {path.name!r} is no regular file")
    return handle


def _note(handle: int, holder: bytes) -> None:
    """Write who holds a lock into its file; empty: nobody in particular."""
    # This is only information: on a full disk a lock must still be possible, to free space. A
    # file with two names may belong elsewhere and is not written.
    if os.fstat(handle).st_nlink > 1:
        return
    with contextlib.suppress(OSError):
        os.lseek(handle, 0, os.SEEK_SET)
        os.ftruncate(handle, 0)
        os.write(handle, holder)


def _holder(handle: int) -> str:
    os.lseek(handle, 0, os.SEEK_SET)
    found = re.fullmatch(rb"(\d{1,10})\n", os.read(handle, 16))
    return found[1].decode() if found else "unknown"
