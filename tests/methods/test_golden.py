"""Golden traces: what every method did when it was last looked at closely.

Each file in ``golden/`` holds the losses of every phase of a tiny run, and a hash of its final
weights. A refactoring must match them. Where a method is changed on purpose, write them anew with

    GRACE_WRITE_GOLDEN=1 pytest -n 0 tests/methods/test_golden.py

and say in the change why they moved.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from grace.configs.methods import (
    BaseMethodSettings,
    DERSettings,
    EWCSettings,
    FinetuneSettings,
    FosterSettings,
    GraceSettings,
    ICaRLSettings,
    JointSettings,
    MemoSettings,
    ReplaySettings,
    WASettings,
)
from grace.configs.registry import METHODS
from grace.learner.learner import Learner
from grace.record import collect_hardware
from tiny_streams import class_names, labelled, learner, recipe

pytestmark = pytest.mark.usefixtures("tiny_backbones")

FOLDER = Path(__file__).parent / "golden"
BASE = {"base": recipe(2, lr=0.03)}
LATER = recipe(2, lr=0.03)
RUNS: Mapping[str, BaseMethodSettings] = {
    "grace": GraceSettings(grow=LATER, compress=LATER, expand_at=(2,), **BASE),
    "grace-previous": GraceSettings(
        grow=LATER, compress=LATER, assess_on="previous", threshold=1.0, **BASE
    ),
    "der": DERSettings(grow=LATER, **BASE),
    "foster": FosterSettings(boost=LATER, compress=LATER, **BASE),
    "memo": MemoSettings(grow=LATER, **BASE),
    "memo-frozen": MemoSettings(grow=LATER, train_base=False, **BASE),
    "wa": WASettings(update=LATER, **BASE),
    "icarl": ICaRLSettings(update=LATER, **BASE),
    "replay": ReplaySettings(update=LATER, **BASE),
    "ewc": EWCSettings(update=LATER, **BASE),
    "finetune": FinetuneSettings(update=LATER, **BASE),
    "joint": JointSettings(**BASE),
}


def environment() -> dict[str, Any]:
    """What the bits depend on besides the code; kernels differ among CPUs of one capability."""
    return {
        "cpu": collect_hardware("cpu", torch.get_num_threads())["cpu"],
        "torch": torch.__version__,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def learnt(method: BaseMethodSettings) -> Learner:
    """Three tasks of 2, 2 and 1 classes."""
    made = learner(method)
    for counts in ({0: 10, 1: 9}, {2: 10, 3: 9}, {4: 9}):
        data = labelled(counts)
        made.update(data.images, class_names(data))
    return made


def trace(made: Learner) -> dict[str, Any]:
    """Losses of each phase in each task, the decisions, and the bits of the weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(made.method.network.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    tasks = []
    for update in made.history:
        phases = {work.name: dict(work.losses) for work in update.work if work.epochs}
        outcome = update.outcome
        decided = {"saturation": outcome.saturation, "merge_weight": outcome.merge_weight}
        tasks.append({"verdict": outcome.verdict, "phases": phases, **decided})
    return {"environment": environment(), "weights": digest.hexdigest(), "tasks": tasks}


@pytest.fixture(scope="module")
def traces(tiny_backbones: None) -> dict[str, dict[str, Any]]:
    """Traces made so far in this session."""
    return {}


def traced(traces: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    if name not in traces:
        traces[name] = trace(learnt(RUNS[name]))
        if os.environ.get("GRACE_WRITE_GOLDEN"):
            FOLDER.mkdir(exist_ok=True)
            text = json.dumps(traces[name], indent=1)
            (FOLDER / f"{name}.json").write_text(text + "\n")
    return traces[name]


def stored(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def test_every_method_has_a_trace() -> None:
    assert {settings.name for settings in RUNS.values()} == set(METHODS)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", RUNS)
def test_losses(traces: dict[str, dict[str, Any]], name: str) -> None:
    found = traced(traces, name)["tasks"]
    for number, (now, then) in enumerate(zip(found, stored(name)["tasks"], strict=True), 1):
        assert now["verdict"] == then["verdict"], f"task {number}"
        assert now["phases"].keys() == then["phases"].keys(), f"task {number}"
        for phase, losses in then["phases"].items():
            assert now["phases"][phase] == pytest.approx(losses, rel=1e-4, abs=1e-4), (
                f"task {number}, phase {phase}"
            )
        for value in ("saturation", "merge_weight"):
            assert now[value] == pytest.approx(then[value], abs=1e-4), f"task {number}"


@pytest.mark.parametrize("name", RUNS)
def test_weights(traces: dict[str, dict[str, Any]], name: str) -> None:
    found = traced(traces, name)
    expected = stored(name)
    if environment() != expected["environment"]:
        pytest.skip(f"bits were stored for {expected['environment']}, this is {environment()}")
    assert found["weights"] == expected["weights"]
