"""A first task that methods train alike is trained once, and never taken for another one."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from grace.base import atomic, tensors
from grace.data.images import Dataset
from grace.data.scenario import Task
from grace.engine import rounding
from grace.engine.device import Device
from grace.engine.journal import start_of
from grace.engine.phase import Batch, Loss, Phase
from grace.engine.trainer import Trainer
from grace.learner.learner import Learner
from grace.methods.method import Method, Outcome, Steps
from grace.methods.replay import Replay
from grace.nn.heads import Head, LinearHead
from grace.runs.model import RunRecord
from grace.runs.run import run as run_experiment
from grace.settings.experiment import EngineSettings, ScenarioSettings, SeedSettings
from grace.settings.method import AnyMethodSettings
from grace.settings.registry import METHODS, Entry
from support.contract import VARIANTS
from support.tiny_streams import SIZE, dataset, recipe, settings, task
from support.tiny_streams import tiny_backbones as tiny_backbones
from support.typed import typed

pytestmark = pytest.mark.usefixtures("tiny_backbones")

IMAGES = dataset(4, train=8, test=4)
"""Two tasks of two classes."""
PAIR = dataset(2, train=8, test=4)
"""A first task, and none after it."""
BASE = {"base": recipe(2)}
# Those whose first task is one cross-entropy of a new network; what comes after it differs.
ALIKE: Mapping[str, AnyMethodSettings] = {
    name: VARIANTS[name].model_copy(update=BASE)
    for name in (*("replay", "icarl", "wa", "der", "grace-compresses", "foster"),)
}
AVERAGED = recipe(2).model_copy(update={"average_epochs": 2})


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Phases of which an epoch was trained, by name."""
    names: list[str] = []
    batches = Trainer._epoch_batches

    def noted(trainer: Trainer, name: str, epoch: int, *rest: Any) -> Any:
        if epoch == 0:
            names.append(name)
        return batches(trainer, name, epoch, *rest)

    monkeypatch.setattr(Trainer, "_epoch_batches", noted)
    return names


def run(
    method: AnyMethodSettings,
    directory: Path,
    first_tasks: Path | None,
    images: Dataset = PAIR,
    **changes: Any,
) -> RunRecord:
    chosen = settings(method, **changes)
    return run_experiment(chosen, directory=directory, dataset=images, first_tasks=first_tasks)


@pytest.fixture(scope="module")
def one_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunRecord, Path]:
    """A run that trained its first task, and the folder in which it left that for others."""
    folder = tmp_path_factory.mktemp("one run")
    record = run(ALIKE["replay"], folder / "one", folder / "first-tasks")
    assert len(list((folder / "first-tasks").rglob("*.safetensors"))) == 1
    return record, folder / "first-tasks"


@pytest.fixture
def shared(one_run: tuple[RunRecord, Path], tmp_path: Path) -> Path:
    """A copy of what that run left."""
    return Path(shutil.copytree(one_run[1], tmp_path / "first-tasks"))


def results(record: RunRecord) -> list[Any]:
    """All that was computed; not how long it took."""
    return [
        (task.classifiers, task.confusion, task.saturation, [p.losses for p in task.phases])
        for task in record.tasks
    ]


def test_methods_that_begin_alike_train_it_once_and_end_with_the_same_bits(
    trained: list[str], tmp_path: Path
) -> None:
    shared = tmp_path / "first-tasks"
    for number, (name, method) in enumerate(ALIKE.items()):
        images = IMAGES if name in ("der", "wa") else PAIR  # Two take a later task too.
        alone = run(method, tmp_path / f"{name} alone", None, images)
        trained.clear()
        record = run(
            method, tmp_path / name, shared if images is PAIR else tmp_path / "two", images
        )
        is_second = number > 0 if images is PAIR else name == "der"
        assert results(record) == results(alone)
        assert ("base" in trained) != is_second, name
        base = record.tasks[0].phases[0]
        assert (base.name, base.epochs) == ("base", 2)
        # What another run spent counts as this one's cost, and the record says so.
        assert (base.earlier > 0) == base.is_shared == is_second
        assert record.tasks[0].seconds.learn >= base.seconds >= base.earlier
    # Linear heads alone are 2 × 64 + 2: a whole ResNet-8 and its head lie there, once.
    assert len(list(shared.rglob("*.safetensors"))) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"seeds": SeedSettings(class_order=7)},
        {"seeds": SeedSettings(initialisation=7)},
        {"scenario": ScenarioSettings(increment=2, class_order=(1, 0))},
        {"method": Replay.Settings(update=recipe(), base=recipe(2, lr=0.04))},
        {"method": Replay.Settings(update=recipe(), base=recipe(2), label_smoothing=0.1)},
        {"method": Replay.Settings(update=recipe(), base=AVERAGED)},
        {"images": dataset(2, train=9, test=4)},
        # One class more in the first task.
        {"images": dataset(3, train=8, test=4), "scenario": ScenarioSettings(base=3, increment=1)},
    ],
    ids=lambda changes: str(next(iter(changes.values())))[:60],
)
def test_another_first_task_is_never_taken_for_it(
    trained: list[str], shared: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    record = run(changes.pop("method", ALIKE["replay"]), tmp_path / "other", shared, **changes)
    assert "base" in trained
    assert record.tasks[0].phases[0].earlier == 0


def test_what_was_left_damaged_is_trained_anew(
    trained: list[str], one_run: tuple[RunRecord, Path], shared: Path, tmp_path: Path
) -> None:
    whole, _ = one_run
    (left,) = shared.rglob("*.safetensors")
    data = bytearray(left.read_bytes())
    data[-1] ^= 1
    left.write_bytes(data)
    trained.clear()
    assert results(run(ALIKE["wa"], tmp_path / "two", shared))[0] == results(whole)[0]
    assert "base" in trained
    # And it lies there whole again.
    trained.clear()
    run(ALIKE["der"], tmp_path / "three", shared)
    assert "base" not in trained


def test_all_that_decides_how_sums_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(**engine: Any) -> str:
        return rounding.describe(Device.from_settings(EngineSettings(device="cpu", **engine)))

    threads = torch.get_num_threads()
    seen = [found(threads=threads)]
    try:
        seen += [found(threads=threads + 1), found(threads=threads, channels_last=False)]
        seen += [found(threads=threads, compile=False)]
        patched = (
            *((rounding, name) for name in ("processor_name", "processor_flags", "_probe")),
            (torch.backends.cpu, "get_cpu_capability"),
        )
        for owner, name in patched:
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, lambda *_: "another")
                seen.append(found(threads=threads))
        for name in ("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY"):
            with monkeypatch.context() as patch:
                patch.setenv(name, "AVX2")
                seen.append(found(threads=threads))
    finally:
        torch.set_num_threads(threads)
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    ("name", "value"),
    [("seconds", "1e400"), ("seconds", "-1000000.0"), ("losses", '{"<script>":1.0}')],
)
def test_a_forged_entry_is_trained_anew(
    trained: list[str], shared: Path, tmp_path: Path, name: str, value: str
) -> None:
    [left] = shared.rglob("*.safetensors")
    kept, metadata = tensors.decode(left.read_bytes(), "entry")
    snapshot = json.loads(metadata["entry"])
    snapshot["snapshot"][name] = "HERE"
    text = json.dumps(snapshot).replace('"HERE"', value)
    # Whoever forges it can hash it, too.
    digest = hashlib.sha256(text.encode() + tensors.encode(kept)).hexdigest()
    left.write_bytes(tensors.encode(kept, {"entry": text, "sha256": digest}))
    record = run(ALIKE["wa"], tmp_path / "two", shared)
    assert "base" in trained
    assert record.tasks[0].phases[0].losses.keys() == {"classification"}


@pytest.mark.parametrize("trouble", ["no folder", "full disk"])
def test_a_first_task_that_cannot_be_left_ends_no_run(
    trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = atomic.write_bytes

    def full(path: Path, data: bytes) -> None:
        if "first-tasks" in path.parts:
            raise OSError(28, "No space left on device")
        write(path, data)

    if trouble == "no folder":
        (tmp_path / "first-tasks").touch()
    else:
        monkeypatch.setattr(atomic, "write_bytes", full)
    assert run(ALIKE["replay"], tmp_path / "one", tmp_path / "first-tasks").complete


class Plain(Method):
    """A method whose first task is everyone's."""

    def later_task(self, task: Task) -> Steps[Outcome]:
        raise AssertionError("there is no later task")


class Headed(Plain):
    """A method whose heads start at zero."""

    @staticmethod
    def make_head(
        settings: Any, in_features: int, num_classes: int, draws: torch.Generator | None
    ) -> Head:
        head = LinearHead(in_features, num_classes, draws)
        nn.init.zeros_(head.weight)
        return head


@pytest.mark.parametrize(("method", "left"), [(Headed, 2), (Plain, 1)])
def test_a_first_task_is_shared_by_what_it_holds(
    trained: list[str],
    method: type[Method],
    left: int,
    shared: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = {**METHODS, "replay": Entry("another", f"{__name__}:{method.__name__}")}
    monkeypatch.setattr("grace.settings.registry.METHODS", entries)
    run(ALIKE["replay"], tmp_path / "two", shared)
    assert ("base" in trained) == (method is not Plain)
    assert len(list(shared.rglob("*.safetensors"))) == left


def first_phase() -> Phase:
    learner = Learner.create(settings(ALIKE["wa"]), shape=(3, SIZE, SIZE))
    return typed(Phase, next(learner.method.first_task(task(1, {0: 4, 1: 4}, 0))))


def other_objective(batch: Batch) -> dict[str, Loss]:
    """Another loss."""
    raise AssertionError("it is hashed, never called")


def test_whatever_differs_changes_the_address_of_a_phase() -> None:
    phase, moved = first_phase(), first_phase()
    assert start_of(phase) == start_of(moved) is not None
    backbone, head = phase.parts["backbone.0"], phase.parts["head"]
    with torch.no_grad():
        next(moved.parts["head"].module.parameters())[0, 0] += 1e-6
    others = [
        replace(phase, name="other"),
        replace(phase, recipe=recipe(3)),
        replace(phase, views=2),
        replace(phase, objective=other_objective),
        replace(phase, state={"ramp": torch.zeros(1)}),
        replace(phase, data=phase.data.subset(torch.arange(7))),
        replace(phase, parts={"backbone.0": replace(backbone, trains=False), "head": head}),
        replace(phase, parts={"backbone.0": replace(backbone, mode="eval"), "head": head}),
        moved,
    ]
    addresses = [start_of(other) for other in [phase, *others]]
    assert None not in addresses
    assert len(set(addresses)) == len(addresses)
