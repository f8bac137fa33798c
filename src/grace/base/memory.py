"""Find out the machine's memory, refuse allocations too large for it, give memory back."""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from grace.base.refusals import GraceError


def memory_bytes() -> int | None:
    """Return the memory of the machine or container in bytes; ``None`` if unknown."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    # Linux control groups, of the second and the first kind; without a limit the first says "max",
    # the other a number larger than any memory.
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            found = min(found, int(Path(path).read_text()))
    return found


def return_freed_memory() -> None:
    """Give freed memory back to the system; the C library keeps it for each thread otherwise."""
    # Only glibc has this function, and only glibc needs it.
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def refuse_too_large(num_bytes: int, what: str) -> None:
    """Refuse anything that needs more than half of the machine's memory.

    Args:
        num_bytes: number of bytes that it needs.
        what: its name in the message.

    Raises:
        GraceError: if it needs more.
    """
    memory = memory_bytes()
    if memory is not None and num_bytes > memory // 2:
        raise GraceError(
            f"{what} takes {num_bytes} bytes, more than half of this machine's memory of {memory}",
            "choose a smaller one or a larger machine",
        )
