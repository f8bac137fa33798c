"""Decide how many runs this machine can make at a time, and how to start each one."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import grace
from grace.base.machine import memory_bytes, usable_cores
from grace.settings.experiment import ExperimentSettings


def jobs_at_once(
    settings: ExperimentSettings,
    device: str,
    num_gpus: int = 1,
    per_gpu: int | None = None,
    bytes_each: int = 2 * 10**9,
) -> int:
    """Return how many such runs this machine can make at a time.

    Args:
        settings: settings of one of the runs.
        device: device of the runs, "cpu" or "cuda".
        num_gpus: GPUs of this machine, taken to be alike.
        per_gpu: runs that share a GPU; higher: a GPU is used better by small runs, until its memory
            is full. ``None``: as many as its free memory allows, and one of images of more than 64
            pixels.
        bytes_each: assumed memory of a run of small images, on the machine and on a GPU.

    Returns:
        At least 1; limited by the cores (``engine.threads`` for each run, by default 1; one for a
        run on a GPU) and by the memory.
    """
    wanted = [usable_cores() // (1 if device == "cuda" else settings.engine.threads or 1)]
    memory = memory_bytes()
    if memory is not None:
        wanted.append(memory // bytes_each)
    if device == "cuda":
        wanted.append(num_gpus * (per_gpu or _runs_on_a_gpu(settings, bytes_each)))
    return max(1, min(wanted))


def _runs_on_a_gpu(settings: ExperimentSettings, bytes_each: int) -> int:
    import torch

    if not has_small_images(settings):
        return 1
    return max(1, torch.cuda.mem_get_info()[0] // bytes_each)


def has_small_images(settings: ExperimentSettings) -> bool:
    """Return True if the images have at most 64 pixels a side, so that runs can share a GPU."""
    return (settings.data.image_size or 32) <= 64 and settings.data.source != "imagenet100"


def with_threads(settings: ExperimentSettings, device: str) -> ExperimentSettings:
    """Set the number of CPU threads to 1 if it is not set.

    Rounding depends on the number of threads. torch's own choice would depend on how many runs
    there are at a time, and so would every accuracy. On a GPU the setting is left as it is.
    """
    if device == "cuda" or settings.engine.threads is not None:
        return settings
    engine = settings.engine.model_copy(update={"threads": 1})
    return settings.model_copy(update={"engine": engine})


def run_command(settings: Path, options: Mapping[str, Path], *flags: str) -> list[str]:
    """Return the command that makes one run with the current Python and the current package.

    Args:
        settings: file of the run's settings.
        options: options of ``grace run`` with their values.
        flags: further options without a value.
    """
    # Absolute paths cannot be read as options.
    given = [text for name, path in options.items() for text in (name, str(path.absolute()))]
    return own_command("run", str(settings.absolute()), *given, *flags)


def own_command(*arguments: str) -> list[str]:
    """Return the command that passes arguments to the current package in the current Python."""
    # -P: no module is imported from the current folder.
    return [sys.executable, "-P", "-m", "grace", *arguments]


def run_environment(at_once: int) -> dict[str, str]:
    """Return environment variables for one of several runs: package path, UTF-8, threads."""
    package = str(Path(grace.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    variables = {"PYTHONPATH": path, "PYTHONUTF8": "1", "PYTHONUNBUFFERED": "1"}
    if at_once > 1 and "OMP_NUM_THREADS" not in os.environ:
        variables["OMP_NUM_THREADS"] = str(max(1, usable_cores() // at_once))
    return variables
