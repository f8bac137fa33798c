"""What this machine's processor is called."""

import platform
from functools import cache
from pathlib import Path


@cache
def processor_name() -> str:
    """Return the processor's name as the machine tells it; its architecture where it does not."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if "model name" in line]
    return names[0] if names else platform.processor() or platform.machine()
