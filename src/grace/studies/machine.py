"""Decide how many runs this machine can make at a time, and how to start each one."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import grace
from grace.configs.experiment import ExperimentSettings
from grace.storage.memory import memory_bytes


def jobs_at_once(settings: ExperimentSettings, device: str, bytes_each: int = 2 * 10**9) -> int:
    """Return how many such runs this machine can make at a time.

    Args:
        settings: settings of one of the runs.
        device: device of the runs, "cpu" or "cuda".
        bytes_each: assumed memory of a run of small images, on the machine and on a GPU.

    Returns:
        At least 1; limited by the cores (``engine.threads`` for each run, by default 1) and by the
        memory. On a GPU each run needs one core, and images of more than 64 pixels allow one run.
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
    """Set the number of CPU threads to 1 if it is not set.

    Rounding depends on the number of threads. torch's own choice would depend on how many runs
    there are at a time, and so would every accuracy. On a GPU the setting is left as it is.
    """
    if device == "cuda" or settings.engine.threads is not None:
        return settings
    engine = settings.engine.model_copy(update={"threads": 1})
    return settings.model_copy(update={"engine": engine})


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


def run_command(settings: Path, options: Mapping[str, Path], *flags: str) -> list[str]:
    """Return the command that makes one run with the current Python and the current package.

    Args:
        settings: file of the run's settings.
        options: options of ``grace run`` with their values.
        flags: further options without a value.
    """
    # Absolute paths cannot be read as options. -P: no module is imported from the current folder.
    given = [text for name, path in options.items() for text in (name, str(path.absolute()))]
    return [sys.executable, "-P", "-m", "grace", "run", str(settings.absolute()), *given, *flags]


def run_environment(at_once: int) -> dict[str, str]:
    """Return environment variables for one of several runs: package path, UTF-8, threads."""
    package = str(Path(grace.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": path, "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
    if at_once > 1 and "OMP_NUM_THREADS" not in os.environ:
        variables["OMP_NUM_THREADS"] = str(max(1, usable_cores() // at_once))
    return variables
