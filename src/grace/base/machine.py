"""What this machine has: its memory and its processor."""

import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path

from grace.base.errors import GraceError


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


@cache
def processor_name() -> str:
    """Return the processor's name, or its architecture if the machine does not give a name."""
    return _first_of("model name") or platform.processor() or platform.machine()


@cache
def processor_flags() -> str:
    """Return the instructions that the processor has, as it names them; empty if it does not."""
    return _first_of("flags") or _first_of("Features")


def computes_in_bfloat16() -> bool:
    """Return True if the processor has instructions for products of bfloat16 numbers."""
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(processor_flags().split())


def usable_cores() -> int:
    """Return the number of cores that this process and its container may use; at least 1."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    # Linux control groups: "quota period" in microseconds; without a limit it says "max".
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, int(quota) // int(period))
    return max(1, cores)


def _first_of(name: str) -> str:
    """Return the first value of this name in the system's description of its processors."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    rows = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for key, _, value in rows if key.strip() == name), "")
