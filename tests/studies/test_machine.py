"""How many runs a machine carries out at once, and how each is started."""

import subprocess
import sys
from pathlib import Path

import pytest

import grace
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import load_experiment
from grace.studies import machine
from grace.studies.machine import (
    jobs_at_once,
    run_command,
    run_environment,
    with_threads,
)


def settings(*overrides: str) -> ExperimentSettings:
    return load_experiment("digits", overrides)


@pytest.mark.parametrize(
    ("cores", "memory", "threads", "expected"),
    [
        (16, 64e9, 1, 16),
        (16, 64e9, 4, 4),
        (16, 64e9, None, 16),
        (2, 64e9, 4, 1),
        (16, 7e9, 1, 3),
        (2, 1e9, 1, 1),
        (16, None, 1, 16),
    ],
)
def test_cores_and_memory_decide_how_many(
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    memory: float | None,
    threads: int | None,
    expected: int,
) -> None:
    monkeypatch.setattr(machine, "memory_bytes", lambda: memory and int(memory))
    monkeypatch.setattr(machine, "usable_cores", lambda: cores)
    given = settings(f"engine.threads={threads or 'null'}")
    assert jobs_at_once(given, "cpu") == expected


def test_on_a_gpu_cores_and_its_memory_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_bytes", lambda: 128 * 10**9)
    monkeypatch.setattr(machine, "usable_cores", lambda: 16)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (21 * 10**9, 80 * 10**9))
    assert jobs_at_once(settings(), "cuda") == 10
    # Large images have the card to themselves.
    assert jobs_at_once(settings("data.image_size=224"), "cuda") == 1
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (78 * 10**9, 80 * 10**9))
    assert jobs_at_once(settings(), "cuda") == 16


def test_results_depend_on_no_number_of_runs_at_once() -> None:
    """Threads decide how sums are rounded: a CPU run has a number of its own."""
    assert with_threads(settings("engine.threads=null"), "cpu").engine.threads == 1
    assert with_threads(settings("engine.threads=4"), "cpu").engine.threads == 4
    assert with_threads(settings("engine.threads=null"), "cuda").engine.threads is None


def test_a_run_is_this_very_package_wherever_it_is_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Neither a module in the present folder nor a path that looks like something else matters."""
    (tmp_path / "statistics.py").write_text("raise SystemExit('taken for the library')")
    (tmp_path / "grace.py").write_text("raise SystemExit('taken for grace')")
    place = tmp_path / "-lr=0.1"
    place.mkdir()
    (place / "a.yaml").write_text("parent: digits\nmemory: {size: -1}\n")
    monkeypatch.chdir(tmp_path)
    command = run_command(Path("-lr=0.1/a.yaml"), {"--out": Path("-lr=0.1/run")})
    assert command[0] == sys.executable
    done = subprocess.run(command, env=run_environment(1), capture_output=True, text=True)
    assert done.stderr.startswith("error: memory.size = -1 should be"), done


def test_runs_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "usable_cores", lambda: 16)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert run_environment(3)["OMP_NUM_THREADS"] == "5"
    assert "OMP_NUM_THREADS" not in run_environment(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert "OMP_NUM_THREADS" not in run_environment(3)
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    path = run_environment(1)["PYTHONPATH"]
    assert path.endswith("elsewhere")
    assert (Path(path.split(":")[0]) / "grace" / "__init__.py").samefile(grace.__file__)
