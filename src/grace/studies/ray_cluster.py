"""A Ray cluster whose machines share a folder, as a place for runs (docs/clusters.md).

Each run is a task that starts the same ``grace run`` as on one machine. Ray chooses the machine,
and starts a run again whose machine was lost; that goes on at its last snapshot.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from typing_extensions import override

from grace.base.errors import GraceError
from grace.base.files import read_small
from grace.base.lock import holder
from grace.base.words import first_line, in_one_line
from grace.settings.experiment import ExperimentSettings
from grace.studies.machine import has_small_images
from grace.studies.pool import Attempt, Job, Machines, start_process, why_failed

_START = "start the cluster with 'ray start', and write --ray auto there or HOST:PORT of its head"
_STATUS = ("-m", "ray.scripts.scripts", "status", "--address")
"""Arguments of Python for ``ray status``, of which an address is the last one."""
CONNECT_SECONDS = 10.0
"""How long a program at HOST:PORT may take to accept a connection."""
CHECK_SECONDS = 20.0
"""How long ``ray status`` may take; it needs a second where a cluster is there."""
RETRIES = 2
"""How often a run whose machine was lost is started again."""


class KilledError(Exception):
    """The process of a run was killed, perhaps because its machine is being lost.

    Its argument is the exit code. Ray makes the run again.
    """


@final
class RayCluster(Machines):
    """The machines of a Ray cluster.

    Args:
        address: "auto" on a machine of the cluster, or "HOST:PORT".
        per_gpu: runs that share a GPU; ``None``: 4 of images of at most 64 pixels, one of others.

    Raises:
        GraceError: if Ray is not installed, or there is no cluster at the address.
    """

    def __init__(self, address: str, per_gpu: int | None = None) -> None:
        before = signal.getsignal(signal.SIGTERM)
        try:
            import ray
        except ImportError:
            raise GraceError("--ray needs ray", "pip install 'grace-cil[cluster]'") from None
        if not ray.is_initialized():
            _refuse_silent(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise GraceError(
                    f"--ray {address}: {first_line(error).rstrip('.')}", _START
                ) from None
        with suppress(ValueError):  # Ray sets its own; neither does so outside the main thread.
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)
        self._ray: Any = ray
        self._remote: Any = ray.remote(run_there)
        self._per_gpu = per_gpu

    @property
    @override
    def seconds_between(self) -> float:
        return 2.0  # Each look reads records through the network.

    @override
    def device(self, settings: ExperimentSettings) -> str:
        has_gpu = self._resources.get("GPU", 0) >= 1
        if settings.engine.device == "cuda" and not has_gpu:
            raise GraceError("engine.device: the Ray cluster has no GPU", "use engine.device=cpu")
        return "cuda" if has_gpu and settings.engine.device != "cpu" else "cpu"

    @override
    def at_once(self, settings: ExperimentSettings) -> int:
        cores = int(self._resources.get("CPU", 1))
        if self.device(settings) == "cpu":
            return max(1, cores // (settings.engine.threads or 1))
        return max(1, min(cores, int(self._resources["GPU"]) * self._runs_on_a_gpu(settings)))

    @override
    def start(self, job: Job) -> Attempt:
        share = self._share(job.cell.settings)
        task = self._remote.options(
            max_retries=RETRIES, retry_exceptions=[KilledError], name=job.cell.name, **share
        )
        return RayTask(self._ray, task, job)

    def _share(self, settings: ExperimentSettings) -> Mapping[str, float]:
        """Return what a run takes of a machine; refuse what none has, for which Ray would wait."""
        if self.device(settings) == "cuda":
            return {"num_cpus": 1, "num_gpus": 1 / self._runs_on_a_gpu(settings)}
        threads = settings.engine.threads or 1
        most = max(int(node["Resources"].get("CPU", 0)) for node in self._ray.nodes())
        if threads > most:
            raise GraceError(
                f"engine.threads: {threads} are more than the {most} cores of the largest machine "
                "of the Ray cluster",
                "set it to that or less",
            )
        return {"num_cpus": threads, "num_gpus": 0}

    @property
    def _resources(self) -> Mapping[str, float]:
        found: Mapping[str, float] = self._ray.cluster_resources()
        return found

    def _runs_on_a_gpu(self, settings: ExperimentSettings) -> int:
        return self._per_gpu or (4 if has_small_images(settings) else 1)


@final
class RayTask(Attempt):
    """A job as a task of a Ray cluster.

    Args:
        ray: the module.
        task: the remote function with its options.
        job: the job.
    """

    def __init__(self, ray: Any, task: Any, job: Job) -> None:  # noqa: ANN401 - an optional module
        self._ray, self._job = ray, job
        self._log_start = job.log.stat().st_size if job.log.exists() else 0
        self._reference = task.remote(
            list(job.command),
            str(job.log.absolute()),
            str(Path.cwd()),
            dict(job.environment),
            str(job.lock.absolute()) if job.lock else None,
        )

    @property
    @override
    def job(self) -> Job:
        return self._job

    @override
    def has_ended(self) -> bool:
        return bool(self._ray.wait([self._reference], timeout=0)[0])

    @override
    def failure(self) -> str | None:
        try:
            code = self._ray.get(self._reference)
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, KilledError):
                return why_failed(cause.args[0], self._job.log, self._log_start)
            if isinstance(cause, OSError):
                return f"{cause} (do all machines of the cluster see this under the same path?)"
            return f"Ray: {first_line(error)}"
        return why_failed(code, self._job.log, self._log_start)

    @override
    def stop(self) -> None:
        # This ends the worker, which closes the input of the run's process, which ends it.
        self._ray.cancel(self._reference, force=True)

    @override
    def wait(self, seconds: float) -> None:
        self._ray.wait([self._reference], timeout=seconds)


def _refuse_silent(address: str) -> None:
    """Refuse an address where no Ray cluster answers; Ray itself would ask there without an end.

    Raises:
        GraceError: if it is no address, or no cluster answers within ``CHECK_SECONDS``.
    """
    meant, shown = address, f"--ray {address}"
    if address == "auto" and os.environ.get("RAY_ADDRESS"):
        meant = os.environ["RAY_ADDRESS"]
        shown = f"--ray auto, which is {meant} by RAY_ADDRESS"
    if meant != "auto":
        _connect(meant, shown)
    # In a process of its own, which can be ended: Ray's own time limits are longer, and it prints.
    try:
        done = subprocess.run(  # noqa: S603 - without a shell
            [sys.executable, *_STATUS, meant],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CHECK_SECONDS,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired:
        newest = _newest_cluster() if meant == "auto" else ""
        raise GraceError(
            f"{shown}: no Ray cluster answers there within {CHECK_SECONDS:g} seconds{newest}",
            _START,
        ) from None
    if done.returncode != 0:
        raise GraceError(f"{shown}: {_reason(done.stderr)}", _START)


def _connect(address: str, shown: str) -> None:
    """Refuse what is not HOST:PORT, and a port where no program answers."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "://" in address:
        raise GraceError(
            f"{shown}: this is not HOST:PORT",
            "give the address HOST:PORT of the head, which 'ray start --head' prints, or auto on a "
            "machine of the cluster",
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise GraceError(f"{shown}: nothing answers there ({error})", _START) from None


def _newest_cluster() -> str:
    """Return in words which cluster Ray noted as the newest one on this machine, if any."""
    note = Path(os.environ.get("RAY_TMPDIR") or "/tmp") / "ray" / "ray_current_cluster"  # noqa: S108
    try:
        address = read_small(note, "Ray's note", 100).decode()
    except (GraceError, OSError, UnicodeDecodeError):
        return ""
    return f" ({note} still names {in_one_line(address)})"


def _reason(stderr: str) -> str:
    """Return the message of the error with which ``ray status`` ended, in one line."""
    *before, last = re.split(r"^[\w.]*(?:Error|Exception): ", stderr, flags=re.MULTILINE)
    if not before:  # No error of Python, or one without a text.
        last = "" if "Traceback" in stderr else "".join(stderr.strip().splitlines()[-1:])
    return in_one_line(last[:500]).rstrip(".") if last.strip() else "'ray status' fails"


def run_there(
    command: Sequence[str], log: str, folder: str, environment: Mapping[str, str], lock: str | None
) -> int:
    """Run a command on a machine of the cluster; return its exit code, not negative.

    Args:
        command: program and arguments; it ends when its standard input is closed.
        log: file to which its output is appended, in the shared folder.
        folder: where relative paths begin.
        environment: further variables.
        lock: file that a process of the same run holds, whose machine or parent was lost; it is
            waited for.

    Raises:
        KilledError: if the process was killed.
    """
    if lock is not None:
        _wait_until_free(Path(lock))
    with start_process(command, Path(log), environment, Path(folder)) as process:
        code = process.wait()
    if code < 0:
        raise KilledError(code)
    return code


def _wait_until_free(lock: Path, seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while holder(lock) is not None and time.monotonic() < until:
        time.sleep(0.5)
