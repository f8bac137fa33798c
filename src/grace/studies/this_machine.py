"""The processors and GPUs of this machine, as a place for runs."""

import os
from collections.abc import Sequence
from functools import cached_property
from typing import final

from typing_extensions import override

from grace.settings.experiment import ExperimentSettings
from grace.studies.machine import jobs_at_once
from grace.studies.pool import Attempt, Job, LocalProcess, Machines

_VARIABLE = "CUDA_VISIBLE_DEVICES"


@final
class ThisMachine(Machines):
    """Runs are processes here. If there are several GPUs, each run sees one of them.

    Args:
        per_gpu: runs that share a GPU; ``None``: as many as its memory allows.
    """

    def __init__(self, per_gpu: int | None = None) -> None:
        self._per_gpu = per_gpu

    @property
    @override
    def seconds_between(self) -> float:
        return 0.3

    @override
    def device(self, settings: ExperimentSettings) -> str:
        from grace.engine.device import device_name

        return device_name(settings.engine)

    @override
    def at_once(self, settings: ExperimentSettings) -> int:
        device = self.device(settings)
        num_gpus = len(visible_gpus()) if device == "cuda" else 1
        return jobs_at_once(settings, device, num_gpus, self._per_gpu)

    @override
    def start(self, job: Job) -> Attempt:
        if job.cell.settings.engine.device == "cpu" or self._gpus is None:
            return LocalProcess(job)
        return self._gpus.start(job)

    @cached_property
    def _gpus(self) -> "OnGpus | None":
        names = visible_gpus()
        return OnGpus(names) if len(names) > 1 else None


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them."""
    import torch

    count = torch.cuda.device_count()
    given = os.environ.get(_VARIABLE)
    names = given.split(",") if given else map(str, range(count))
    return tuple(name.strip() for name in names)[:count]


@final
class OnGpus:
    """Starts every job on the GPU that has the fewest jobs; the job sees no other GPU.

    Args:
        names: at least one GPU, as ``CUDA_VISIBLE_DEVICES`` names it.
    """

    def __init__(self, names: Sequence[str]) -> None:
        assert names
        self._running: dict[str, list[Attempt]] = {name: [] for name in names}

    def start(self, job: Job) -> Attempt:
        """Start a job."""
        for name, attempts in self._running.items():
            self._running[name] = [one for one in attempts if not one.has_ended()]
        freest = min(self._running, key=lambda name: len(self._running[name]))
        attempt = LocalProcess(job, {_VARIABLE: freest})
        self._running[freest].append(attempt)
        return attempt
