"""Workers on a Ray cluster whose machines share a folder (docs/studies.md).

Each run is a task of Ray's, which chooses the machine, and starts a run again whose machine was
lost; that goes on at its last snapshot.
"""

import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any

from grace.base.errors import GraceError
from grace.base.words import in_one_line
from grace.settings.experiment import ExperimentSettings
from grace.studies.workers import Job, Worker, run_here, runs_on_a_gpu

_CONNECT = "import ray, sys; ray.init(address=sys.argv[1], logging_level='ERROR')"


def ray_workers(
    address: str, settings: ExperimentSettings, at_once: int | None = None, *, seconds: float = 30
) -> list[Worker]:
    """Return workers that hand each run to a Ray cluster.

    Args:
        address: "auto" on a machine of the cluster, or "HOST:PORT" of its head.
        settings: of one of the runs.
        at_once: runs at a time; ``None``: as many as the cluster has room for.
        seconds: how long the cluster may take to answer.

    Raises:
        GraceError: if Ray is not installed, or no cluster answers.
    """
    try:
        import ray
    except ImportError:
        raise GraceError("--ray needs ray", "pip install 'grace-cil[cluster]'") from None
    if not ray.is_initialized():
        _refuse_silent(address, seconds)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    resources: Mapping[str, float] = ray.cluster_resources()
    share: dict[str, float] = {"num_cpus": settings.engine.threads or 1}
    count = int(resources.get("CPU", 1) // share["num_cpus"])
    if resources.get("GPU", 0) >= 1 and settings.engine.device != "cpu":
        share["num_gpus"] = 1 / runs_on_a_gpu(settings)
        count = min(count, int(resources["GPU"] / share["num_gpus"]))
    task = ray.remote(max_retries=2, **share)(_run_there)
    return [partial(_run_on_ray, ray=ray, task=task)] * (at_once or max(1, count))


def _run_there(job: Job) -> str | None:
    """Carry out a run on a machine of the cluster; it goes on if another machine had begun it."""
    return run_here(job, threading.Event())


def _run_on_ray(job: Job, stopping: threading.Event, *, ray: Any, task: Any) -> str | None:  # noqa: ANN401 - an optional module
    """Let Ray carry out a run; return why it failed."""
    reference = task.options(name=job.name).remote(job)
    while not ray.wait([reference], timeout=1)[0]:
        if stopping.is_set():
            # This ends the worker, which closes the input of the run's process, which ends it.
            ray.cancel(reference, force=True)
            return "interrupted"
    try:
        failure: str | None = ray.get(reference)
    except ray.exceptions.RayError as error:
        return f"Ray: {in_one_line(error)[:300]} (do all machines see {job.place}?)"
    return failure


def _refuse_silent(address: str, seconds: float) -> None:
    """Refuse an address where no cluster answers: Ray itself can ask there without an end."""
    try:
        subprocess.run(  # noqa: S603 - our own command, no shell
            [sys.executable, "-c", _CONNECT, address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=seconds,
            check=True,
        )
        return
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines()
        why = in_one_line(lines[-1])[:300] if lines else "Ray fails"
    except subprocess.TimeoutExpired:
        why = f"no cluster answers there within {seconds:g} seconds"
    remedy = "start the cluster with 'ray start', and write --ray auto there or HOST:PORT"
    raise GraceError(f"--ray {address}: {why}", remedy)
