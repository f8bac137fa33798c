import math
from typing import Any

import pytest
import torch

from grace.methods.icarl import ICaRL
from grace.settings.experiment import MemorySettings
from support.driven import batch, drive, head_of
from support.tiny_streams import labelled, learn, learner, recipe, task
from support.typed import typed

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def settings(**choices: Any) -> ICaRL.Settings:
    return ICaRL.Settings(**({"base": recipe(), "update": recipe()} | choices))


def icarl(**choices: Any) -> ICaRL:
    return typed(ICaRL, learner(settings(**choices)).method)


@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_the_loss_by_hand(weight: float) -> None:
    method = icarl(distillation_weight=weight)
    drive(method, task(1, {0: 4, 1: 4}, 0))
    with torch.no_grad():
        method.network.head.weight.zero_()
        method.network.head.bias.copy_(torch.tensor([2 * math.log(3), 0.0]))
    _, items = drive(method, task(2, {2: 4}, 2))
    phase = items[0]
    with torch.no_grad():
        head_of(phase).weight.zero_()
        head_of(phase).bias.copy_(torch.tensor([0.0, 2 * math.log(3), math.log(2)]))
    losses = phase.objective(batch(phase, [2]))
    # CE over all three: exp(z) = (1, 9, 2), −ln(2/12).
    assert losses["classification"].weight == 1.0
    assert float(losses["classification"].value) == pytest.approx(math.log(6), abs=1e-6)
    # T = 2 on the old two: teacher (3/4, 1/4), student (1/4, 3/4); no T².
    assert losses["distillation"].weight == weight
    expected = -0.75 * math.log(0.25) - 0.25 * math.log(0.75)
    assert float(losses["distillation"].value) == pytest.approx(expected, abs=1e-6)


class TestClassifiers:
    def test_exemplars_classify_and_the_head_is_told_beside_them(self) -> None:
        made = learner(settings(base=recipe(3), update=recipe(3)))
        for counts in ({0: 10, 1: 10}, {2: 10, 3: 10}):
            learn(made, counts)
        probe = labelled(dict.fromkeys(range(4), 5), seed=3)
        scores = made.scores(probe.images)
        assert list(scores) == ["nearest_mean", "linear"]
        # The nearest of the means of the stored exemplars' features, by the definition: features
        # of length 1, their mean, and that of length 1 again.
        network, memory = made.method.network, made.method.memory

        def features(pixels: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                found = network.features((pixels.float() / 255 - 0.4) / 0.3)
            return found / found.square().sum(dim=1, keepdim=True).sqrt()

        def mean(index: int) -> torch.Tensor:
            total = features(memory.of_class(index).gather(torch.arange(3))).sum(dim=0)
            return total / total.square().sum().sqrt()

        images = features(probe.images.gather(torch.arange(20)))
        distances = torch.cdist(images, torch.stack([mean(index) for index in range(4)]))
        nearest = distances.argmin(dim=1)
        assert made.predict(probe.images) == [f"class {int(i)}" for i in nearest]
        torch.testing.assert_close(
            scores["nearest_mean"], -distances.square(), rtol=1e-3, atol=1e-4
        )

    def test_without_exemplars_it_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"icarl .* memory\.size is 0"):
            learner(settings(), memory=MemorySettings(size=0))
        learner(settings(), memory=MemorySettings(size=0, per_class=2))


def test_known_classes_alone_are_distilled_whole() -> None:
    method = icarl()
    drive(method, task(1, {0: 4, 1: 4}, 0))
    outcome, items = drive(method, task(2, {0: 5, 1: 5}, 2))
    assert outcome.verdict == "train"
    assert [item.name for item in items] == ["update", "herd", "class means"]
    # Equal networks: the distillation is the teacher's entropy, and its gradient is zero.
    head, features = head_of(items[0]).requires_grad_(True), torch.rand(3, 64)
    outputs = {"old.0": features, "backbone.0": features}
    losses = items[0].objective(batch(items[0], [0, 1, 1], outputs))
    (gradient,) = torch.autograd.grad(losses["distillation"].value, head.weight)
    torch.testing.assert_close(gradient, torch.zeros(2, 64), atol=1e-7, rtol=0)
