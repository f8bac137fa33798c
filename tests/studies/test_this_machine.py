"""Several GPUs on one machine: each run sees one of them."""

from pathlib import Path

import pytest

from grace.settings.load import load_experiment
from grace.studies import machine, this_machine
from grace.studies.pool import ListedJobs, Unwatched, carry_out
from grace.studies.this_machine import OnGpus, ThisMachine, visible_gpus
from support.jobs import script_job

SETTINGS = load_experiment("digits", ["engine.device=cuda"])


def test_each_run_sees_the_gpu_with_the_fewest_runs(tmp_path: Path) -> None:
    """a and c go on until e has run; d, on the other GPU, is over at once, so that e follows it."""
    says = "print(os.environ['CUDA_VISIBLE_DEVICES'], flush=True); "
    waits = says + "exec(\"while not (p / 'e over').exists(): time.sleep(0.01)\")"
    scripts = {"a": waits, "b": waits, "c": waits, "d": says, "e": says + "(p / 'e over').touch()"}
    source = ListedJobs(
        [script_job(tmp_path, name, script, SETTINGS) for name, script in scripts.items()]
    )
    gpus = OnGpus(("3", "GPU-8a"))
    carry_out(source, 4, Unwatched(), start=gpus.start, seconds_between=0.01)
    assert source.failures == {}
    seen = {name: (tmp_path / f"{name}.txt").read_text().strip() for name in scripts}
    assert seen == {"a": "3", "b": "GPU-8a", "c": "3", "d": "GPU-8a", "e": "GPU-8a"}


def test_gpus_are_named_as_this_process_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus() == ("0", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-8a,-1,7")
    assert visible_gpus() == ("5", "GPU-8a")


@pytest.mark.parametrize(
    ("size", "per_gpu", "at_once"), [(32, None, 20), (224, None, 2), (32, 3, 6), (224, 2, 4)]
)
def test_so_many_runs_share_a_gpu(
    monkeypatch: pytest.MonkeyPatch, size: int, per_gpu: int | None, at_once: int
) -> None:
    monkeypatch.setattr(machine, "memory_bytes", lambda: 512 * 10**9)
    monkeypatch.setattr(machine, "usable_cores", lambda: 64)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda: (21 * 10**9, 80 * 10**9))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(this_machine, "visible_gpus", lambda: ("0", "1"))
    settings = load_experiment("digits", ["engine.device=cuda", f"data.image_size={size}"])
    assert ThisMachine(per_gpu).at_once(settings) == at_once


def test_runs_on_the_processor_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(this_machine, "visible_gpus", lambda: ("0", "1"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    says = "print('CUDA_VISIBLE_DEVICES' in os.environ)"
    for device, seen in (("cpu", "False"), ("cuda", "True")):
        settings = load_experiment("digits", [f"engine.device={device}"])
        started = ThisMachine().start(script_job(tmp_path, device, says, settings))
        started.wait(60)
        assert (tmp_path / f"{device}.txt").read_text().strip() == seen
