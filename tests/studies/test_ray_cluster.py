"""Runs as tasks of a Ray cluster of two nodes on this machine."""

import gc
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from grace.base.errors import GraceError
from grace.settings.experiment import EngineSettings
from grace.settings.load import load_experiment
from grace.studies import ray_cluster
from grace.studies.cells import Cell
from grace.studies.pool import ListedJobs, Unwatched, carry_out
from grace.studies.ray_cluster import RayCluster
from support.jobs import script_job

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own; it also leaves sockets open.
SETTINGS = load_experiment("digits", ["engine.device=cpu", "engine.threads=1"])
ON_GPU = load_experiment("digits", ["engine.threads=1"])
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
        head = {"num_cpus": 2, "num_gpus": 1, **SMALL}
        made = Cluster(initialize_head=True, head_node_args=head)
        made.worker = made.add_node(num_cpus=2, **SMALL)
        yield made
        ray.shutdown()
        made.shutdown()
        gc.collect()  # What it leaves open warns here, not in another test.


def test_what_a_cluster_is_asked_for(cluster: Any) -> None:
    machines = RayCluster(cluster.address)
    assert machines.device(ON_GPU) == "cuda"
    assert machines.at_once(ON_GPU) == 4
    assert RayCluster(cluster.address, per_gpu=3).at_once(ON_GPU) == 3
    assert machines.device(SETTINGS) == "cpu"
    assert machines.at_once(SETTINGS) == 4
    two = SETTINGS.model_copy(update={"engine": EngineSettings(device="cpu", threads=2)})
    assert machines.at_once(two) == 2


def test_small_runs_share_the_gpu_and_reasons_of_failures_come_back(
    cluster: Any, tmp_path: Path
) -> None:
    says = "print(os.environ['CUDA_VISIBLE_DEVICES'], os.getcwd(), os.environ['MINE'])"
    one = replace(script_job(tmp_path, "a", says, SETTINGS), cell=Cell("a", 1, ON_GPU))
    jobs = [
        replace(one, environment={"MINE": "yes"}),
        script_job(tmp_path, "b", "print('error: no room'); sys.exit(2)", SETTINGS),
        script_job(tmp_path, "c", "os.kill(os.getpid(), 9)", SETTINGS),
        replace(script_job(tmp_path, "d", "", SETTINGS), log=tmp_path / "not there" / "d.txt"),
    ]
    source = ListedJobs(jobs)
    carry_out(source, 4, Unwatched(), start=RayCluster(cluster.address).start, seconds_between=0.05)
    assert (tmp_path / "a.txt").read_text().split() == ["0", str(Path.cwd()), "yes"]
    assert source.failures["b-s1"] == "no room"
    assert source.failures["c-s1"].startswith("killed by SIGKILL")
    assert source.failures["d-s1"].endswith(
        f"No such file or directory: '{tmp_path}/not there/d.txt' (do all machines of the cluster "
        "see this under the same path?)"
    )
    many = SETTINGS.model_copy(update={"engine": EngineSettings(device="cpu", threads=3)})
    with pytest.raises(GraceError, match="3 are more than the 2 cores of the largest machine"):
        RayCluster(cluster.address).start(replace(one, cell=Cell("e", 1, many)))


def test_a_run_whose_node_is_lost_is_made_again_elsewhere(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of four are on the lost node; all go on until one of these has begun again."""
    waits = (
        "(p / sys.argv[2]).open('a').write('begun '); "
        "exec(\"while not (p / 'go').exists(): time.sleep(0.02)\")"
    )
    jobs = []
    for name in "abcd":
        one = script_job(tmp_path, name, waits, SETTINGS)
        jobs.append(replace(one, command=[*one.command, f"{name}.begun"]))

    def begun() -> list[int]:
        return [path.read_text().count("begun") for path in tmp_path.glob("*.begun")]

    wait, before = time.sleep, []

    def lose(seconds: float) -> None:
        wait(seconds)
        if not before and sum(map(bool, begun())) == 4:  # A file is there before its text.
            before.append(sum(begun()))
            cluster.add_node(num_cpus=2, **SMALL)
            cluster.remove_node(cluster.worker, allow_graceful=False)
        elif before and sum(begun()) > before[0]:
            (tmp_path / "go").touch()

    monkeypatch.setattr("grace.studies.pool.time.sleep", lose)
    source, start = ListedJobs(jobs), RayCluster(cluster.address).start
    carry_out(source, 4, Unwatched(), start=start, seconds_between=0.05)
    assert source.failures == {}
    assert sum(begun()) > before[0] >= 4


@pytest.fixture
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No connection yet, and a short time for one; returns where Ray notes its newest cluster."""
    pytest.importorskip("ray", reason="the cluster extra is not installed")
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("ray.init", lambda **options: pytest.fail("Ray would ask without an end"))
    monkeypatch.setattr(ray_cluster, "CHECK_SECONDS", 0.2)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    return tmp_path / "ray" / "ray_current_cluster"


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@pytest.mark.usefixtures("no_cluster")
def test_no_cluster_is_an_error_of_the_user() -> None:
    silent = "nothing answers there .*ray start"
    for address in (f"127.0.0.1:{closed_port()}", "127.0.0.1:99999", "..:1"):  # No port, no host.
        with pytest.raises(GraceError, match=f"--ray {address}: {silent}"):
            RayCluster(address)
    for address in ("no address", "ray://127.0.0.1:10001", "local", ":6379"):
        with pytest.raises(
            GraceError, match=r"not HOST:PORT: give the address .*ray start"
        ) as not_one:
            RayCluster(address)
        assert not_one.value.what.startswith(f"--ray {address}: ")


@pytest.mark.usefixtures("no_cluster")
def test_a_port_that_accepts_but_is_not_ray_is_refused_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = r"no Ray cluster answers there within 0\.2 seconds: start the cluster with 'ray start'"
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(GraceError, match=f"--ray {address}: {said}"):
            RayCluster(address)
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(GraceError, match=f"--ray auto, which is {address} by RAY_ADDRESS: no"):
            RayCluster("auto")
    with pytest.raises(GraceError, match=f"{address} by RAY_ADDRESS: nothing answers there"):
        RayCluster("auto")


def test_auto_with_a_cluster_that_is_gone_is_refused_in_time(no_cluster: Path) -> None:
    with pytest.raises(GraceError, match=r"--ray auto: no Ray cluster .* seconds: start the"):
        RayCluster("auto")
    os.mkfifo(no_cluster)  # Anyone can write to /tmp: a pipe there is not waited for.
    with pytest.raises(GraceError, match=r"--ray auto: no Ray cluster .* seconds: start the"):
        RayCluster("auto")
    no_cluster.unlink()
    no_cluster.write_text(f"127.0.0.1:{closed_port()}")  # It was killed, not stopped.
    with pytest.raises(
        GraceError, match=rf"seconds \({no_cluster} still names 127.0.0.1:[0-9]+\): start"
    ):
        RayCluster("auto")


@pytest.mark.usefixtures("no_cluster")
def test_what_ray_says_of_a_cluster_is_repeated_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_cluster, "CHECK_SECONDS", 20)
    for script, said in {
        "raise RuntimeError('Version mismatch: started with:\\n  Ray: 1.2')": (
            "--ray auto: Version mismatch: started with: Ray: 1.2: start the"
        ),
        "try: 1/0\nexcept ZeroDivisionError: raise ConnectionError('No Ray.')": (
            "--ray auto: No Ray: start the"
        ),
        "raise SystemExit('No such module')": "--ray auto: No such module: start the",
        "raise SystemExit(3)": "--ray auto: 'ray status' fails: start the",
        "assert False": "--ray auto: 'ray status' fails: start the",
        "raise ValueError('First ' + 600 * 'b')": "--ray auto: First b",
    }.items():
        monkeypatch.setattr(ray_cluster, "_STATUS", ("-c", script))
        with pytest.raises(GraceError, match=said):
            RayCluster("auto")
