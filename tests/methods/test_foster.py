import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from grace.data.scenario import Task
from grace.engine.phase import Loss, Phase, Sweep
from grace.learner.learner import Learner
from grace.methods.foster import Foster
from grace.nn.expandable import ExpandableNetwork
from grace.nn.heads import MASKED, LinearHead
from grace.runs.run import run as run_experiment
from grace.runs.stream import Stream
from grace.settings.experiment import MemorySettings
from support.driven import batch, drive, forget, head_of, module_of
from support.interruptions import interrupted
from support.tiny_streams import SIZE, dataset, labelled, learn, learner, recipe, settings, task
from support.typed import present, typed

pytestmark = pytest.mark.usefixtures("tiny_backbones")

PROBE = labelled(dict.fromkeys(range(4), 3), seed=5).images


def foster(**choices: Any) -> Foster.Settings:
    return Foster.Settings(base=recipe(), boost=recipe(), compress=recipe(), **choices)


def method(memory_size: int = 13, **choices: Any) -> Foster:
    return typed(Foster, learner(foster(**choices), memory=MemorySettings(size=memory_size)).method)


def taught(home: Path | None = None, **memory: Any) -> Learner:
    """A learner of classes 0 and 1, then 2."""
    chosen = settings(foster(), memory=MemorySettings(**{"size": 20} | memory))
    made = Learner.create(chosen, shape=(3, SIZE, SIZE), directory=home)
    learn(made, {0: 9, 1: 9})
    learn(made, {2: 9})
    return made


def phases(made: Foster, work: Task) -> list[Phase]:
    return [item for item in drive(made, work)[1] if isinstance(item, Phase)]


def even(phase: Phase, *biases: Sequence[float]) -> None:
    """Make a phase's heads give their biases whatever the features."""
    heads = [name for name in ("head", "features") if name in phase.parts]
    with torch.no_grad():
        for head, bias in zip(heads, biases, strict=True):
            head_of(phase, head).weight.zero_()
            head_of(phase, head).bias.copy_(torch.tensor(bias))


@torch.no_grad()
def losses_of(phase: Phase, labels: Sequence[int]) -> dict[str, Loss]:
    features = torch.rand(len(labels), 64)
    from_images = [name for name, part in phase.parts.items() if "images" in part.reads]
    return dict(phase.objective(batch(phase, labels, dict.fromkeys(from_images, features))))


def teacher_of(made: Foster) -> ExpandableNetwork:
    return present(made.teacher.value)


class TestBoosting:
    def phase(self, **choices: Any) -> Phase:
        """Old classes 0 and 1 with one exemplar each, and class 2 with two images."""
        made = method(memory_size=2, **choices)
        drive(made, task(1, {0: 4, 1: 4}, 0))
        even_old = torch.tensor([2 * math.log(3), 0.0])
        with torch.no_grad():
            head = typed(LinearHead, made.network.head)
            head.weight.zero_()
            head.bias.copy_(even_old)
        return typed(Phase, next(made.learn(task(2, {2: 2}, 2))))

    def test_the_three_losses_by_hand(self) -> None:
        phase = self.phase(boosting_beta=0.5, distillation_weight=0.7)
        # β = ½: weights 2, 2 and 4/3 for 1, 1 and 2 images, times 3/(2 + 2 + 4/3) = 9/16:
        # w = (9/8, 9/8, 3/4).
        even(phase, [9 / 8 * math.log(2), 0.0, 3 / 4 * math.log(5)], [0.0, math.log(2), 0.0])
        losses = losses_of(phase, [0, 2])
        # Divided by w the logits are (ln 2, 0, ln 5), that is (2, 1, 5)/8.
        expected = -(math.log(2 / 8) + math.log(5 / 8)) / 2
        assert float(losses["classification"].value) == pytest.approx(expected, abs=1e-6)
        # The feature head's are not weighted: (1, 2, 1)/4.
        assert float(losses["features"].value) == pytest.approx(math.log(4), abs=1e-6)
        # T = 2: teacher σ(ln 3, 0) = (3, 1)/4; the student's old logits are 9/8 ln 2 and 0.
        student = torch.tensor([9 / 16 * math.log(2), 0.0]).log_softmax(0).tolist()
        expected = -(0.75 * student[0] + 0.25 * student[1])
        assert float(losses["distillation"].value) == pytest.approx(expected, abs=1e-6)
        assert [losses[name].weight for name in ("classification", "features")] == [1.0, 1.0]
        assert losses["distillation"].weight == 0.7

    def test_a_forgotten_class_does_not_count(self) -> None:
        made = method(memory_size=6, boosting_beta=0.5)
        drive(made, task(1, {0: 2, 1: 2, 2: 2}, 0))
        forget(made, [1])
        work = Task(
            number=2, data=labelled({3: 1}), new_classes=range(3, 4), forgotten=frozenset([1])
        )
        boost, compress = phases(made, work)
        # Two images of class 0 and 2, one of 3: weights 4/3, 4/3 and 2, times 3/(14/3) = 9/14:
        # w = (6/7, ·, 6/7, 9/7); the forgotten class keeps its logit, which no softmax sees.
        even(boost, [6 / 7 * math.log(2), 99.0, 0.0, 9 / 7 * math.log(5)], [0.0, 99.0, 0.0, 0.0])
        losses = losses_of(boost, [3])
        assert float(losses["classification"].value) == pytest.approx(-math.log(5 / 8), abs=1e-6)
        assert float(losses["features"].value) == pytest.approx(math.log(3), abs=1e-6)
        # The student's and the teacher's logits of it are masked alike.
        teacher = teacher_of(made)
        assert teacher.head.masked == (1,)
        assert math.isfinite(float(losses_of(compress, [3])["distillation"].value))
        forget(made, [1, 2])
        features = torch.rand(1, 128)
        assert [float(v) == MASKED for v in teacher.head(features)[0]] == [False, True, True, False]


class TestCompression:
    def test_the_loss_by_hand(self) -> None:
        made = method(memory_size=3, compression_beta=0.5)
        drive(made, task(1, {0: 4, 1: 4}, 0))
        phase = phases(made, task(2, {2: 2}, 2))[1]
        head = typed(LinearHead, present(phase.teacher).head)
        assert module_of(phase, "old.head") is head
        with torch.no_grad():
            head.weight.zero_()
            head.bias.copy_(torch.tensor([2 * math.log(2), 0.0, 2 * math.log(3)]))
        even(phase, [2 * math.log(4), 0.0, 0.0])
        losses = losses_of(phase, [0, 1])
        # T = 2: teacher (2, 1, 3)/6; β = ½ gives w = (9/8, 9/8, 3/4), so q ∝ (2, 1, 2).
        # The student says (4, 1, 1)/6. Labels play no part.
        expected = -(0.4 * math.log(4 / 6) + 0.6 * math.log(1 / 6))
        assert list(losses) == ["distillation"]
        assert float(losses["distillation"].value) == pytest.approx(expected, abs=1e-6)
        assert losses["distillation"].weight == 1.0


class TestTeacher:
    @pytest.mark.parametrize("who", ["student", "teacher"])
    def test_either_chooses_the_exemplars(self, who: str) -> None:
        made = method(herd_with=who)
        drive(made, task(1, {0: 4, 1: 4}, 0))
        sweeps = [i for i in drive(made, task(2, {2: 4}, 2))[1] if isinstance(i, Sweep)]
        assert [sweep.name for sweep in sweeps] == ["herd", "class means"]
        chosen = teacher_of(made) if who == "teacher" else made.network
        assert [part.module for part in sweeps[0].parts.values()] == list(chosen.backbones)
        # The means are those of the network that goes on.
        assert [part.module for part in sweeps[1].parts.values()] == list(made.network.backbones)

    def test_it_is_tested_beside_the_student(self) -> None:
        made = taught()
        scores = made.scores(PROBE)
        assert list(scores) == ["linear", "nearest_mean", "teacher"]
        assert isinstance(made.method, Foster)
        teacher = teacher_of(made.method)
        assert len(teacher.backbones) == 2
        mean, std = (torch.tensor(v)[:, None, None] for v in (made.model.mean, made.model.std))
        with torch.no_grad():
            logits = teacher((PROBE.gather(torch.arange(12)) / 255 - mean) / std)
        torch.testing.assert_close(scores["teacher"], logits, atol=1e-4, rtol=1e-4)
        # Only the student counts.
        assert made.size().num_backbones == 1
        assert next(iter(scores)) == "linear"

    def test_under_a_ceiling_it_is_let_go(self, tmp_path: Path) -> None:
        made = taught(tmp_path / "home", max_mb=1.0)
        assert list(made.scores(PROBE)) == ["linear", "nearest_mean"]
        assert all("teacher" not in name for name in made.method.state.collect().parts)
        # A student of 0.3 MB fits where three backbones do not.
        assert made.history[-1].num_bytes < 500_000
        assert made.history[-1].outcome.verdict == "compress"


def test_a_run_killed_before_its_test_reports_the_same(tmp_path: Path) -> None:
    data = dataset(4)
    chosen = settings(foster())
    straight = run_experiment(chosen, directory=tmp_path / "straight", dataset=data)
    assert list(straight.tasks[1].classifiers) == ["linear", "nearest_mean", "teacher"]
    with interrupted(Stream, "test", lambda _, task, *__: task.number == 2):
        run_experiment(chosen, directory=tmp_path / "run", dataset=data)
    resumed = run_experiment(chosen, directory=tmp_path / "run", dataset=data, resume=True)
    assert resumed.tasks[1].classifiers == straight.tasks[1].classifiers
    assert resumed.tasks[1].confusion == straight.tasks[1].confusion
