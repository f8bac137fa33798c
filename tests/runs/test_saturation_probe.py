"""Runs that measure saturation: the numbers are right, and nothing else changes."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from grace.data.images import LabelledImages
from grace.engine.phase import LossProbe
from grace.engine.trainer import Trainer
from grace.learner.learner import Learner
from grace.methods.grace import Grace
from grace.nn.expandable import ExpandableNetwork
from grace.runs.model import RunRecord, TaskRecord
from grace.runs.provenance import fingerprints
from grace.runs.record import RecordWriter
from grace.runs.run import run as run_experiment
from grace.settings.experiment import MeasureName, MeasureSettings, ScenarioSettings
from support.interruptions import call_number, interrupted
from support.recorded_streams import pixels, teach
from support.tiny_streams import dataset, labelled, learner, recipe, settings, watch
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")

GRACE = Grace.Settings(base=recipe(2), grow=recipe(2), compress=recipe(2), expand_at=(3,))
ALL = MeasureSettings(
    measures=get_args(MeasureName),
    images=12,
    adversarial_steps=3,
    expected_pairs=3,
    hessian_products=6,
)
STREAM = ({0: 9, 1: 9}, {2: 9, 3: 9}, {4: 9, 5: 9})
IMAGES = dataset(6, train=9, test=5)


def run(directory: Path, probe: MeasureSettings, method: Any = GRACE, **how: Any) -> RunRecord:
    chosen = settings(method, scenario=ScenarioSettings(increment=2), probe=probe)
    return run_experiment(chosen, directory=directory, dataset=IMAGES, **how)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, tiny_backbones: None) -> RunRecord:
    return run(tmp_path_factory.mktemp("straight") / "run", ALL)


def plain(task: TaskRecord) -> dict[str, Any]:
    """A line without measures and times."""
    line = json.loads(task.model_dump_json(exclude={"measures", "seconds"}))
    line["phases"] = [
        {key: value for key, value in phase.items() if key not in ("seconds", "earlier")}
        for phase in line["phases"]
        if not phase["name"].startswith("probe")
    ]
    return line


class TestNothingElseChanges:
    def test_the_record_is_that_of_a_plain_run(self, straight: RunRecord, tmp_path: Path) -> None:
        other = run(tmp_path / "plain", MeasureSettings())
        assert [plain(task) for task in straight.tasks] == [plain(task) for task in other.tasks]
        assert [task.measures for task in other.tasks] == [{}, {}, {}]
        assert [task.verdict for task in straight.tasks] == ["start", "compress", "grow"]
        names = [phase.name for phase in straight.tasks[1].phases]
        expected = ["grow", "assess", "compress", "probe rank", "probe loss", "herd", "class means"]
        assert names == expected


class TestValues:
    def test_they_are_of_the_last_backbone_of_the_whole_network(self) -> None:
        """Fisher, norm and effective rank computed here with plain autograd."""
        made = learner(GRACE, probe=ALL.model_copy(update={"images": 1000}))
        network, images, labels = _looked_at(made)
        last = network.backbones[-1]
        weights = list(last.parameters())
        with torch.enable_grad():
            for tensor in weights:
                tensor.requires_grad_(True)
            squares = 0.0
            for image, label in zip(images, labels, strict=True):
                loss = F.cross_entropy(network(image[None]), label[None])
                gradients = torch.autograd.grad(loss, weights)
                squares += sum(float(g.double().square().sum()) for g in gradients)
        size = sum(tensor.numel() for tensor in weights)
        found = dict(made.history[-1].outcome.measures)
        assert found["fisher"] == pytest.approx(squares / (size * len(images)), rel=1e-4)
        norm = torch.cat([tensor.detach().flatten() for tensor in weights]).double().norm()
        assert found["weight_norm"] == pytest.approx(float(norm), rel=1e-6)
        centred = last(images).detach().double()
        sigma = torch.linalg.svdvals(centred - centred.mean(dim=0))
        p = sigma / sigma.sum()
        rank = float(torch.exp(-(p * torch.log(p + 1e-12)).sum())) / min(centred.shape)
        assert found["effective_rank"] == pytest.approx(rank, rel=1e-3)


def _looked_at(made: Learner) -> tuple[ExpandableNetwork, Tensor, Tensor]:
    """Teach two tasks; return network, normalised images and labels of the last one's probe."""
    probes: list[LossProbe] = []
    watch(made, lambda item: probes.append(item) if isinstance(item, LossProbe) else None)
    for counts in STREAM[:2]:
        teach(made, labelled(counts))
    data: LabelledImages = probes[-1].data
    # The second task's images, and 13 // 2 exemplars of each class of the first.
    assert len(data) == 18 + 12
    images = pixels(data.images).float().div(255).sub(0.4).div(0.3)
    return made.method.network, images, data.labels


@pytest.mark.parametrize("place", ["before its line", "before the exemplars"])
def test_a_run_killed_after_a_probe_goes_on(
    place: str, straight: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed, second, probes = Trainer._probe, call_number(2), list[str]()

    def noted(self: Trainer, item: LossProbe, culprit: Any) -> Any:
        probes.append(item.name)
        return probed(self, item, culprit)

    monkeypatch.setattr(Trainer, "_probe", noted)
    killed = (
        interrupted(RecordWriter, "append_task", second)
        if place == "before its line"
        else interrupted(Trainer, "sweep", lambda _, item, *__: item.name == "herd" and second())
    )
    with killed:
        run(tmp_path / "run", ALL)
    record = run(tmp_path / "run", ALL, resume=True)
    assert [task.measures for task in record.tasks] == [t.measures for t in straight.tasks]
    assert [plain(task) for task in record.tasks] == [plain(task) for task in straight.tasks]
    # The second task's probe was read from the journal.
    assert len(probes) == 3


def test_measures_belong_to_the_run_and_to_no_other_fingerprint() -> None:
    def of(probe: MeasureSettings) -> dict[str, str]:
        return fingerprints(settings(GRACE, probe=probe), "00", {})

    none, few = of(MeasureSettings()), of(MeasureSettings(measures=("fisher",)))
    assert none == fingerprints(settings(GRACE), "00", {})
    # How exactly it would be measured does not matter as long as nothing is.
    assert of(MeasureSettings(images=5)) == none
    assert {key for key in none if none[key] != few[key]} == {"run"}
    assert of(MeasureSettings(measures=("fisher",), images=5))["run"] != few["run"]
