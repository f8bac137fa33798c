"""DGR against numbers worked by hand, and its gradients against loops that know only the formulas.

He, "Gradient Reweighting: Towards Imbalanced Class-Incremental Learning", CVPR 2024; the formulas
stand in docs/methods/dgr.md.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, final

import pytest
import torch
from torch import Tensor

from grace.data.scenario import Task
from grace.engine.journal import start_of
from grace.engine.phase import Phase
from grace.learner.learner import Learner
from grace.methods.dgr import DGR, HeadGradients
from grace.settings.experiment import MemorySettings
from support.driven import batch, drive, forget, head_of
from support.tiny_streams import labelled, learner, recipe, task
from support.typed import typed

pytestmark = pytest.mark.usefixtures("tiny_backbones")

Gradients = Mapping[str, Tensor]
HEAD = ("head.weight", "head.bias")


def dgr(memory_size: int = 13, **choices: Any) -> DGR:
    return typed(DGR, learning(memory_size, **choices).method)


def learning(memory_size: int = 13, **choices: Any) -> Learner:
    recipes = {"base": recipe(), "update": recipe()} | choices
    return learner(DGR.Settings(**recipes), memory=MemorySettings(size=memory_size))


def learnt(method: DGR, work: Task) -> Phase:
    """A task's only phase; the task is learnt, without training."""
    method.memory.record_originals(work.data.labels)
    (phase,) = [item for item in drive(method, work)[1] if isinstance(item, Phase)]
    return phase


def started(method: DGR, work: Task) -> Phase:
    """A task's only phase, about to be trained."""
    method.memory.record_originals(work.data.labels)
    return typed(Phase, next(method.learn(work)))


def rule_of(phase: Phase) -> HeadGradients:
    assert isinstance(phase.rule, HeadGradients)
    return phase.rule


def scoring(head: Any, *biases: float) -> None:
    """Make a head give these logits whatever the features."""
    with torch.no_grad():
        head.weight.zero_()
        head.bias.copy_(torch.tensor(biases))


def values(phase: Phase, labels: Sequence[int]) -> dict[str, float]:
    losses = phase.objective(batch(phase, labels))
    return {name: float(loss.value.detach()) for name, loss in losses.items()}


@final
class Given:
    """Gradients that are made up, for a rule."""

    def __init__(self, state: Mapping[str, Tensor], **of: Sequence[Sequence[float]]) -> None:
        self.state = state
        self._weights = {name: torch.tensor(rows) for name, rows in of.items()}

    def of(self, losses: Collection[str], parameters: Collection[str]) -> dict[str, Tensor]:
        (name,) = losses
        assert list(parameters) == ["head.weight", "head.bias"]
        weight = self._weights[name]
        return {"head.weight": weight, "head.bias": 10 * weight[:, 0]}


class TestLosses:
    def phase(self, **choices: Any) -> Phase:
        """Old classes 0 and 1 of 9 and 5 images keep 3 each; class 2 has 2 images."""
        method = dgr(memory_size=6, **choices)
        learnt(method, task(1, {0: 9, 1: 5}, 0))
        scoring(method.network.head, 2 * math.log(3), 0.0)
        return started(method, task(2, {2: 2}, 2))

    def test_by_hand(self) -> None:
        phase = self.phase()
        scoring(head_of(phase), math.log(2), 0.0, 0.0)
        # π = (3, 3, 2)/8: with z = (ln 2, 0, 0) the shares are (6, 3, 2)/11.
        found = values(phase, [0, 2])
        expected = -(math.log(6 / 11) + math.log(2 / 11)) / 2
        assert found["classification"] == pytest.approx(expected, abs=1e-6)
        # Lost (6, 2), so p = (3, 1)/√10; R is the entropy of (6.001, 2.001)/8.002.
        p = 3 / math.sqrt(10)
        a, b = 6.001 / 8.002, 2.001 / 8.002
        even = -(a * math.log(a) + b * math.log(b)) / math.log(2)
        teacher = [0.75, 0.25]  # σ(ln 3, 0)
        student = softmax(math.log(2) / 2, 0)
        mixed = softmax((p * math.log(2) + (1 - p) * 2 * math.log(3)) / 2, 0)
        expected = even * cross(teacher, student) + (1 - even) * cross(teacher, mixed)
        assert found["distillation"] == pytest.approx(expected, abs=1e-6)

    @pytest.mark.parametrize(
        ("choices", "weight", "discount"),
        [
            # n_seen = 14, n_new = 2; T² = 4.
            ({}, 0.7 * math.sqrt(7) * 4, math.exp(-14 / 16)),
            ({"temperature": 3.0, "distillation_weight": 1.0}, math.sqrt(7) * 9, None),
            # K_old = 2, K_new = 1, without T².
            ({"distillation_by": "classes"}, 0.7 * 2, math.exp(-14 / 16)),
            ({"discount_by": "classes"}, None, math.exp(-2 / 3)),
        ],
    )
    def test_both_readings_of_what_grows(
        self, choices: dict[str, Any], weight: float | None, discount: float | None
    ) -> None:
        phase = self.phase(**choices)
        losses = phase.objective(batch(phase, [2]))
        assert losses["classification"].weight == 1.0
        if weight is not None:
            assert losses["distillation"].weight == pytest.approx(weight)
        if discount is not None:
            assert rule_of(phase).discount == pytest.approx(discount)


def softmax(*logits: float) -> list[float]:
    powers = [math.exp(logit) for logit in logits]
    return [power / sum(powers) for power in powers]


def cross(target: Sequence[float], found: Sequence[float]) -> float:
    return -sum(t * math.log(f) for t, f in zip(target, found, strict=True))


class TestWhatCounts:
    def test_the_prior_is_for_training_only(self) -> None:
        method = dgr()
        phase = learnt(method, task(1, {0: 9, 1: 3}, 0))
        scoring(method.network.head, 0.0, 0.0)
        # π = (¾, ¼) in the loss; the classifier gives the head's logits as they are.
        assert values(phase, [1])["classification"] == pytest.approx(math.log(4), abs=1e-6)
        assert method.classifiers()["linear"].score(torch.rand(1, 64)).tolist() == [[0.0, 0.0]]

    def test_images_of_known_classes_count_as_old(self) -> None:
        method = dgr(memory_size=6)
        learnt(method, task(1, {0: 9, 1: 5}, 0))
        phase = started(method, task(2, {0: 4, 2: 2}, 2))
        scoring(head_of(phase), 0.0, 0.0, 0.0)
        # n = (3 + 4, 3, 2); n_seen = 9 + 4 + 5, n_new = 2.
        assert values(phase, [0])["classification"] == pytest.approx(math.log(12 / 7), abs=1e-6)
        assert rule_of(phase).discount == pytest.approx(math.exp(-18 / 20))
        weight = phase.objective(batch(phase, [0]))["distillation"].weight
        assert weight == pytest.approx(0.7 * 3 * 4)
        assert (rule_of(phase).old.tolist(), rule_of(phase).new.tolist()) == ([0, 1], [2])
        # Lost (6, 2) as ever: the new images of class 0 are there.
        counts = method._count(task(2, {0: 4, 2: 2}, 2), phase.data)
        assert counts.lost.tolist() == [6, 2]

    def test_a_forgotten_class_counts_nowhere(self) -> None:
        method = dgr(memory_size=6)
        learnt(method, task(1, {0: 9, 1: 5, 2: 5}, 0))
        forget(method, [0])
        work = Task(
            number=2, data=labelled({3: 2}), new_classes=range(3, 4), forgotten=frozenset([0])
        )
        phase = started(method, work)
        scoring(head_of(phase), 99.0, 0.0, 0.0, 0.0)
        # Two images each are left of classes 1 and 2, as of 3.
        found = values(phase, [3])
        assert found["classification"] == pytest.approx(math.log(3), abs=1e-6)
        assert math.isfinite(found["distillation"])
        rule = rule_of(phase)
        assert (rule.old.tolist(), rule.new.tolist()) == ([1, 2], [3])
        assert rule.discount == pytest.approx(math.exp(-10 / 12))
        other = dgr(memory_size=6, discount_by="classes")
        learnt(other, task(1, {0: 9, 1: 5, 2: 5}, 0))
        forget(other, [0])
        assert rule_of(started(other, work)).discount == pytest.approx(math.exp(-2 / 3))

    def test_without_an_old_class_the_rule_is_that_of_a_first_task(self) -> None:
        method = dgr()
        learnt(method, task(1, {0: 4, 1: 4}, 0))
        forget(method, [0, 1])
        work = Task(
            number=2,
            data=labelled({2: 2, 3: 6}),
            new_classes=range(2, 4),
            forgotten=frozenset([0, 1]),
        )
        phase = started(method, work)
        scoring(head_of(phase), 0.0, 0.0, 0.0, 0.0)
        found = values(phase, [2])
        assert found["classification"] == pytest.approx(math.log(4), abs=1e-6)
        assert math.isfinite(found["distillation"])
        assert phase.objective(batch(phase, [2]))["distillation"].weight == 0
        rule = rule_of(phase)
        assert (rule.old.tolist(), rule.new.tolist()) == ([], [2, 3])

    def test_the_first_task_is_its_own(self) -> None:
        phase = started(dgr(), task(1, {0: 4, 1: 4}, 0))
        assert (phase.name, start_of(phase)) == ("base", None)
        assert phase.recipe == recipe()


class TestRule:
    OLD, NEW = [0, 1], [2, 3]
    # Two batches; rows of length (1, 2, 4, 5) and (5, 2, 0, 3): Φ = (1, 2, 4, 5), (6, 4, 4, 8).
    LEARNS = (
        ((0.6, 0.8), (0.0, -2.0), (4.0, 0.0), (3.0, 4.0)),
        ((3.0, -4.0), (2.0, 0.0), (0.0, 0.0), (0.0, 3.0)),
    )
    KEEPS = (
        ((0.3, 0.0), (0.0, 0.4), (0.0, 0.0), (0.0, 0.0)),
        ((0.0, 0.5), (1.2, 0.0), (0.0, 0.0), (0.0, 0.0)),
    )

    def test_two_steps_by_hand(self) -> None:
        state = {"norms": torch.zeros(4)}
        rule = HeadGradients(torch.tensor(self.OLD), torch.tensor(self.NEW), 0.25)
        found = rule(Given(state, classification=self.LEARNS[0], distillation=self.KEEPS[0]))
        # ρ = 4.5/1.5 = 3: old (1, ½); new (1, 4/5)·min(1, ¾) = (¾, 3/5).
        # Weighted lengths (1, 1, 3, 3): κ = √20 / 0.5.
        k = 2 * math.sqrt(20)
        weight = [[0.6 + 0.3 * k, 0.8], [0.0, -1.0 + 0.4 * k], [3.0, 0.0], [1.8, 2.4]]
        for rows, expected in zip(found["head.weight"].tolist(), weight, strict=True):
            assert rows == pytest.approx(expected, abs=1e-6)
        # The made-up biases are ten times the first column.
        assert found["head.bias"].tolist() == pytest.approx([10 * row[0] for row in weight])
        assert state["norms"].tolist() == pytest.approx([1.0, 2.0, 4.0, 5.0])

        found = rule(Given(state, classification=self.LEARNS[1], distillation=self.KEEPS[1]))
        # Φ = (6, 4, 4, 8), ρ = 6/5: old (2/3, 1); new (1, ½)·min(1, 0.3) = (0.3, 0.15).
        # Weighted lengths (10/3, 2, 0, 0.45); the distillation's length is 1.3.
        k = math.sqrt(100 / 9 + 4 + 0.45**2) / 1.3
        weight = [[2.0, -8 / 3 + 0.5 * k], [2.0 + 1.2 * k, 0.0], [0.0, 0.0], [0.0, 0.45]]
        for rows, expected in zip(found["head.weight"].tolist(), weight, strict=True):
            assert rows == pytest.approx(expected, abs=1e-5)
        assert found.keys() == {"head.weight", "head.bias"}

    def test_a_first_task_by_hand(self) -> None:
        state = {"norms": torch.zeros(3)}
        rule = HeadGradients(torch.tensor([], dtype=torch.int64), torch.arange(3), 1.0)
        rows = ((3.0, 4.0), (0.0, 1.0), (2.0, 0.0))
        found = rule(Given(state, classification=rows))
        # Φ = (5, 1, 2): (1/5, 1, ½).
        expected = [pytest.approx(row) for row in ([0.6, 0.8], [0.0, 1.0], [1.0, 0.0])]
        assert found["head.weight"].tolist() == expected
        assert found["head.bias"].tolist() == pytest.approx([6.0, 0.0, 10.0])
