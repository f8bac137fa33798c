"""Workers: how many, what they take, why runs fail, and that they end with their parent."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from grace.base.lock import exclusive
from grace.settings.load import load_experiment
from grace.studies.plan import Plan, Selection
from grace.studies.schema import StudySettings
from grace.studies.workers import Job, carry_out, run_here, why_failed, with_threads, workers_here
from support.runs_here import Started

SETTINGS = load_experiment("digits", ["engine.device=cpu"])


def job(folder: Path, *command: str, name: str = "one") -> Job:
    return Job(name, folder / name, command, folder / f"{name}.txt", "")


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str | None]:
    """Run a script in place of Python, which runs whatever it is given; return why it failed."""
    popen = subprocess.Popen

    def run(script: str, stopping: threading.Event | None = None, **environment: str) -> str | None:
        idle = [sys.executable, "-S", "-c", f"import os, sys, time; {script}"]
        monkeypatch.setattr(
            "grace.studies.workers.subprocess.Popen", lambda _, **options: popen(idle, **options)
        )
        return run_here(job(tmp_path), stopping or threading.Event(), environment)

    return run


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("print('fine')", None),
        ("print('error: no room'); print('more'); sys.exit(2)", "no room"),
        ("print('first'); print('last'); sys.exit(1)", "last"),
        ("print('error: no room'); print('more\\n' * 250_000); sys.exit(1)", "more"),
        ("sys.exit(3)", "it printed nothing"),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL (out of memory? try fewer runs at a time)"),
        ("os.kill(os.getpid(), 6)", "killed by SIGABRT"),
    ],
)
def test_why_a_run_fails(
    script: str, why: str | None, tmp_path: Path, scripted: Callable[..., str | None]
) -> None:
    (tmp_path / "one.txt").write_text("error: of an earlier attempt\n")
    assert scripted(script) == why
    # A shared folder may not show the output yet.
    assert why_failed(2, tmp_path / "none.txt") == "it printed nothing"


def test_a_run_sees_its_gpu_and_the_package(
    tmp_path: Path, scripted: Callable[..., str | None]
) -> None:
    names = "'CUDA_VISIBLE_DEVICES', 'PYTHONPATH'"
    scripted(f"print(*(os.environ[name] for name in ({names})))", CUDA_VISIBLE_DEVICES="3")
    gpu, path = (tmp_path / "one.txt").read_text().split()
    assert gpu == "3"
    assert (Path(path.split(":")[0]) / "grace" / "studies" / "workers.py").is_file()


def test_one_that_does_not_heed_the_request_is_ended(scripted: Callable[..., str | None]) -> None:
    stopping = threading.Event()
    threading.Timer(0.5, stopping.set).start()
    assert scripted("print('there', flush=True); time.sleep(60)", stopping) == "killed by SIGTERM"


def test_a_run_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import threading, pathlib; from grace.studies.workers import *; p = pathlib.Path('.'); "
        "run_here(Job('x', p, ['run', '--with-parent', '--no-report'], p / 'x.txt', ''), "
        "threading.Event())"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path)
    until = time.monotonic() + 60
    while not (runs := list(tmp_path.glob("runs/*/*/run.json"))) and time.monotonic() < until:
        time.sleep(0.1)
    parent.kill()
    parent.wait()
    with exclusive(runs[0].parent / "lock", "the run", 6000):  # Its process is over.
        pass


STUDY = StudySettings.model_validate(
    {
        "scales": {"small": {"protocols": {"p": {"experiment": "digits"}}, "seeds": [1]}},
        "rows": {name: {"method": name} for name in ("replay", "wa", "der")},
    }
)
"""Three runs that begin alike."""


def planned(*seeds: int) -> Plan:
    return Plan(STUDY, Selection(seeds=seeds))


@pytest.mark.parametrize(("seeds", "most"), [((1, 2, 3), 2), ((1,), 1)])
def test_runs_at_once_and_a_failure_keeps_no_other_back(
    seeds: tuple[int, ...], most: int, tmp_path: Path
) -> None:
    """Runs of one seed begin alike: one waits while another trains the first task of both."""
    running, seen, lock = set[str](), [0], threading.Lock()

    def work(job: Job, stopping: threading.Event) -> str:
        with lock:
            running.add(job.name)
            seen.append(len(running))
        time.sleep(0.2)
        with lock:
            running.discard(job.name)
        return f"no room for {job.name}"

    plan, watcher = planned(*seeds), Started()
    carry_out(plan, tmp_path, [work, work], watcher)
    assert max(seen) == most
    assert watcher.planned_runs == [(3 * len(seeds), 2)]
    assert watcher.left[-1] == 0
    failures = {run.name: why for run, why in plan.failures.items()}
    assert failures == {name: f"no room for {name}" for name in watcher.names}


def test_a_run_that_another_process_makes_is_waited_for(tmp_path: Path) -> None:
    plan, names = planned(), list[str]()
    plan.compare_images()
    der = next(run for run in plan.runs if run.name.startswith("der"))
    place = tmp_path / "runs" / plan.identity(der)["run"]
    place.mkdir(parents=True)
    (place / "run.json").write_text("{}")
    with ExitStack() as held:
        held.enter_context(exclusive(place / "lock", "the run"))

        def work(job: Job, stopping: threading.Event) -> str:
            names.append(job.name.split()[0])
            if len(names) == 2:
                held.close()
            return "no room"

        carry_out(plan, tmp_path, [work], Started())
    assert names == ["replay", "wa", "der"]


def test_an_error_of_a_worker_itself_is_raised(tmp_path: Path) -> None:
    def work(job: Job, stopping: threading.Event) -> str:
        raise OSError(28, "No space left on device", "there")

    with pytest.raises(OSError, match="No space left"):
        carry_out(planned(), tmp_path, [work, work], Started())


def test_ctrl_c_ends_the_other_workers(tmp_path: Path) -> None:
    stopped: list[bool] = []

    def work(job: Job, stopping: threading.Event) -> str | None:
        if job.name.startswith("replay"):
            time.sleep(0.5)
            signal.raise_signal(signal.SIGINT)
        stopped.append(stopping.wait(30))
        return None

    # A suite that runs in the background of a shell ignores this signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            carry_out(planned(1, 2), tmp_path, [work, work], Started())
    finally:
        signal.signal(signal.SIGINT, before)
    assert stopped == [True, True]


@pytest.mark.parametrize(
    ("cores", "memory", "threads", "most"),
    [(8, 64, "null", 8), (8, 64, "4", 2), (8, 5, "1", 2), (1, 1, "1", 1), (4, None, "1", 4)],
)
def test_cores_and_memory_decide_how_many(
    cores: int, memory: int | None, threads: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grace.studies.workers.usable_cores", lambda: cores)
    gigabytes = None if memory is None else memory * 10**9
    monkeypatch.setattr("grace.studies.workers.memory_bytes", lambda: gigabytes)
    settings = load_experiment("digits", ["engine.device=cpu", f"engine.threads={threads}"])
    assert len(workers_here(settings)) == most
    assert len(workers_here(settings, 3)) == 3
    # Results depend on no number of runs at once.
    assert with_threads(settings).engine.threads == (settings.engine.threads or 1)


def test_each_gpu_in_turn_gets_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grace.engine.device.device_name", lambda engine: "cuda")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 7,8")
    found: list[Any] = list(workers_here(SETTINGS, 3))
    gpus = [worker.keywords["environment"]["CUDA_VISIBLE_DEVICES"] for worker in found]
    assert gpus == ["4", "7", "4"]
    monkeypatch.setattr("grace.studies.workers.usable_cores", lambda: 64)
    monkeypatch.setattr("grace.studies.workers.memory_bytes", lambda: None)
    assert len(workers_here(SETTINGS)) == 8  # Four runs of small images share a GPU.
    large = load_experiment("digits", ["data.image_size=224"])
    assert len(workers_here(large)) == 2


def test_grids_come_last_and_begin_far_apart(tmp_path: Path) -> None:
    grid = {"method": "grace", "grid": {"method.threshold": [0.1, 0.2, 0.3, 0.4]}}
    rows = {"points": grid, "wa": {"method": "wa"}}
    study = StudySettings.model_validate(STUDY.model_dump() | {"rows": rows})
    plan, watcher = Plan(study, Selection()), Started()
    carry_out(plan, tmp_path, [lambda job, stopping: "no room"], watcher)
    assert [name.split()[0] for name in watcher.names] == ["wa", "0.1", "0.3", "0.2", "0.4"]
