"""The name, the instructions and the usable cores of this machine's processor."""

import os
import platform
from contextlib import suppress
from functools import cache
from pathlib import Path


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
