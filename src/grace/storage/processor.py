"""The name of this machine's processor."""

import platform
from functools import cache
from pathlib import Path


@cache
def processor_name() -> str:
    """Return the processor's name, or its architecture if the machine does not give a name."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()
