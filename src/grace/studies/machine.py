"""How many runs a machine carries out at once, and how each is started."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import grace
from grace.configs.experiment import ExperimentSettings
from grace.storage.memory import memory_bytes


def jobs_at_once(settings: ExperimentSettings, device: str, bytes_each: int = 2 * 10**9) -> int:
    """Say how many such runs this machine carries out at once.

    Args:
        settings: of one of the runs.
        device: where they compute, "cpu" or "cuda".
        bytes_each: memory that a run of small images is taken to need, on the machine and on a GPU.

    Returns:
        As many as there are cores for ``engine.threads`` of each (1 where it is not set) and memory
        for all; at least 1. On a GPU a run needs one core, and images of more than 64 pixels have
        it to themselves.
    """
    wanted = [usable_cores() // (1 if device == "cuda" else settings.engine.threads or 1)]
    memory = memory_bytes()
    if memory is not None:
        wanted.append(memory // bytes_each)
    if device == "cuda":
        import torch

        small = (settings.data.image_size or 32) <= 64 and settings.data.source != "imagenet100"
        wanted.append(torch.cuda.mem_get_info()[0] // bytes_each if small else 1)
    return max(1, min(wanted))


def with_threads(settings: ExperimentSettings, device: str) -> ExperimentSettings:
    """Fix the number of CPU threads, 1 where it is not set.

    Rounding depends on it. Left to torch it would follow from how many runs there are at once, and
    so would every accuracy. On a GPU it decides nothing and stays as it is.
    """
    if device == "cuda" or settings.engine.threads is not None:
        return settings
    engine = settings.engine.model_copy(update={"threads": 1})
    return settings.model_copy(update={"engine": engine})


def usable_cores() -> int:
    """Return the cores that this process may use, those of its container; at least 1."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    # Linux control groups: "quota period" in microseconds; without a limit it says "max".
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, int(quota) // int(period))
    return max(1, cores)


def run_command(settings: Path, options: Mapping[str, Path], *flags: str) -> list[str]:
    """Make the command that carries out one run with this very Python and this very package.

    Args:
        settings: file of the run's settings.
        options: of ``grace run`` with their values.
        flags: further options without a value.
    """
    # Absolute: no path is then taken for an option. -P: nor is a module in the present folder.
    given = [text for name, path in options.items() for text in (name, str(path.absolute()))]
    return [sys.executable, "-P", "-m", "grace", "run", str(settings.absolute()), *given, *flags]


def run_environment(at_once: int) -> dict[str, str]:
    """Return the variables for one of several runs: this package, its share of cores, UTF-8."""
    package = str(Path(grace.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": path, "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
    if at_once > 1 and "OMP_NUM_THREADS" not in os.environ:
        variables["OMP_NUM_THREADS"] = str(max(1, usable_cores() // at_once))
    return variables
