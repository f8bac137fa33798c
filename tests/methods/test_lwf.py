import math

import pytest
import torch

from grace.engine.phase import Phase
from grace.methods.lwf import LwF
from support.driven import batch, drive
from support.tiny_streams import learner, recipe, task
from support.typed import typed

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def later_phase(**changes: float) -> Phase:
    """Classes 2 and 3 come to 0 and 1."""
    method = learner(LwF.Settings(base=recipe(), update=recipe(), **changes)).method
    drive(method, task(1, {0: 4, 1: 4}, 0))
    return typed(Phase, next(method.learn(task(2, {2: 4, 3: 4}, 2))))


def test_the_loss_of_two_images() -> None:
    phase = later_phase()
    student = torch.tensor([[2.0, -1.0, 0.5, 0.0], [0.0, 1.0, -2.0, 3.0]])
    teacher = torch.tensor([[1.5, -0.5], [1.0, 0.0]])
    losses = phase.objective(batch(phase, [2, 3], {"head": student, "old.head": teacher}))
    # (log(1 + e^−½) + log(1 + e^−5)) / 2
    classification = (math.log1p(math.exp(-0.5)) + math.log1p(math.exp(-5))) / 2
    assert classification == pytest.approx(0.240396, abs=1e-6)
    found = {name: float(loss.value) for name, loss in losses.items()}
    assert found == pytest.approx({"classification": 0.240396, "distillation": 0.695066}, abs=1e-6)
    total = sum(float(loss.value) * loss.weight for loss in losses.values())
    assert total == pytest.approx(2.325594, abs=1e-5)


def test_the_published_recipes() -> None:
    settings = LwF.Settings()
    assert (settings.base.epochs, settings.base.milestones) == (200, (60, 120, 160))
    assert (settings.update.epochs, settings.update.milestones) == (250, (60, 120, 180, 220))
    assert (settings.base.weight_decay, settings.update.weight_decay) == (5e-4, 2e-4)
