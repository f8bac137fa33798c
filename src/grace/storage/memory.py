"""How much memory there is, before much of it is asked for."""

import os
from contextlib import suppress
from pathlib import Path

from grace.text.refusals import GraceError


def memory_bytes() -> int | None:
    """Return the machine's memory in bytes, or what its container may use; none if unknown."""
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


def refuse_too_large(num_bytes: int, what: str) -> None:
    """Refuse what takes more than half of the machine's memory.

    Args:
        num_bytes: that it takes.
        what: how the message names it.

    Raises:
        GraceError: it does.
    """
    memory = memory_bytes()
    if memory is not None and num_bytes > memory // 2:
        raise GraceError(
            f"{what} takes {num_bytes} bytes, more than half of this machine's memory of {memory}",
            "choose a smaller one or a larger machine",
        )
