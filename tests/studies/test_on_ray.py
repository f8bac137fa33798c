"""Runs as tasks of a Ray cluster of two nodes on this machine."""

import gc
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from grace.base.errors import GraceError
from grace.settings.load import load_experiment
from grace.studies.on_ray import ray_workers
from grace.studies.workers import Job

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own; it also leaves sockets open.
SETTINGS = load_experiment("digits", ["engine.device=cpu", "engine.threads=1"])
SMALL = {"object_store_memory": 80 * 2**20, "include_dashboard": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head with two processors and, in name, a GPU, and a worker with two processors."""
    ray = pytest.importorskip("ray", reason="the cluster extra is not installed")
    from ray.cluster_utils import Cluster

    # A short name: it becomes part of the names of sockets, which have 107 characters at most.
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory(prefix="ray") as folder:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # By default its workers yield to all others.
        patch.setenv("RAY_TMPDIR", folder)  # Also of the file that names the newest cluster.
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1, **SMALL})
        made.worker = made.add_node(num_cpus=2, **SMALL)
        ray.init(address=made.address, log_to_driver=False)
        yield made
        ray.shutdown()
        made.shutdown()
        gc.collect()  # What it leaves open warns here, not in another test.


def test_a_cluster_makes_runs_and_says_why_they_fail(cluster: Any, tmp_path: Path) -> None:
    assert len(ray_workers(cluster.address, SETTINGS)) == 4
    on_gpu = load_experiment("digits", ["engine.threads=1"])
    assert len(ray_workers(cluster.address, on_gpu)) == 4  # They share the GPU.
    assert len(ray_workers(cluster.address, SETTINGS, 3)) == 3
    [worker] = ray_workers(cluster.address, SETTINGS, 1)
    listed = Job("a", tmp_path / "a", ["list", "methods"], tmp_path / "a.txt", "")
    assert worker(listed, threading.Event()) is None
    assert "grace" in (tmp_path / "a.txt").read_text()
    wrong = Job("b", tmp_path / "b", ["run", "digit"], tmp_path / "b.txt", "")
    assert "no packaged experiment 'digit'" in str(worker(wrong, threading.Event()))
    nowhere = Job("c", tmp_path / "c", ["list"], tmp_path / "none" / "c.txt", "")
    assert "do all machines see" in str(worker(nowhere, threading.Event()))


def test_a_run_on_a_cluster_is_ended(cluster: Any, tmp_path: Path) -> None:
    [worker] = ray_workers(cluster.address, SETTINGS, 1)
    stopping = threading.Event()
    stopping.set()
    long = ["run", "digits", "--with-parent", "--out", str(tmp_path / "run")]
    began = time.monotonic()
    assert worker(Job("d", tmp_path, long, tmp_path / "d.txt", ""), stopping) == "interrupted"
    assert time.monotonic() - began < 60


@pytest.mark.usefixtures("monkeypatch")
@pytest.mark.parametrize("kind", ["closed", "silent", "odd"])
def test_a_dead_address_is_refused_in_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="the cluster extra is not installed")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if kind == "closed":
            server.close()
        address = "no address" if kind == "odd" else f"127.0.0.1:{port}"
        with pytest.raises(GraceError, match=f"--ray {address}: .*start the cluster") as refused:
            ray_workers(address, SETTINGS, seconds=8)
    assert "\n" not in str(refused.value)


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(GraceError, match=r"pip install 'grace-cil\[cluster\]'"):
        ray_workers("auto", SETTINGS)
