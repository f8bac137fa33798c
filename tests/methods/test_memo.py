"""MEMO against what docs/methods/memo.md says of its blocks."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from grace.engine.phase import Phase
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.der import DER
from grace.methods.memo import Memo
from grace.settings.experiment import MemorySettings
from support.driven import batch, drive, head_of
from support.quick_exports import operators_once as operators_once
from support.tiny_streams import (
    SIZE,
    class_names,
    labelled,
    learn,
    learner,
    recipe,
    settings,
    state,
    task,
)
from support.typed import typed

pytestmark = pytest.mark.usefixtures("tiny_backbones")

# ResNet-8 by hand. Trunk: convolutions 432 + 2·2304 + 4608 + 9216, batch norms over 16·3 + 32·2
# channels, 2 parameters each. Branch: convolutions 18432 + 36864, batch norms over 64·2 channels.
TRUNK = 432 + 2 * 2304 + 4608 + 9216 + 2 * 112
BRANCH = 18432 + 36864 + 2 * 128
PROBE = labelled(dict.fromkeys(range(5), 3), seed=5).images


def memo(**choices: Any) -> Memo.Settings:
    return Memo.Settings(base=recipe(), grow=recipe(), **choices)


def method(**choices: Any) -> Memo:
    return typed(Memo, learner(memo(**choices)).method)


def teach(made: Learner, *indices: int) -> None:
    learn(made, dict.fromkeys(indices, 9))


def taught(home: Path | None = None, tasks: int = 2, **choices: Any) -> Learner:
    """A learner of two classes, then of one more per task."""
    chosen = settings(memo(**choices), memory=MemorySettings(size=20))
    made = Learner.create(chosen, shape=(3, SIZE, SIZE), directory=home)
    teach(made, 0, 1)
    for index in range(2, tasks + 1):
        teach(made, index)
    return made


def grow_phase(made: Memo) -> Phase:
    """The phase of a second task, before anything has trained."""
    drive(made, task(1, {0: 4, 1: 4, 2: 4}, 0))
    return typed(Phase, next(made.learn(task(2, {3: 4, 4: 4}, 3))))


def test_the_first_task_is_that_of_an_uncut_backbone() -> None:
    data = labelled({0: 9, 1: 9})
    cut, whole = learner(memo()), learner(DER.Settings(base=recipe(), grow=recipe()))
    for made in (cut, whole):
        made.update(data.images, class_names(data))
    tensors = zip(
        state(cut.method.network).values(), state(whole.method.network).values(), strict=True
    )
    assert all(torch.equal(one, two) for one, two in tensors)


class TestGrow:
    def test_the_loss_by_hand(self) -> None:
        phase = grow_phase(method(auxiliary_weight=0.5))
        head, auxiliary = (head_of(phase, name) for name in ("head", "auxiliary"))
        # The head reads both blocks; the auxiliary one the new features: any old class, 3, or 4.
        assert state(head)["weight"].shape == (5, 128)
        assert state(auxiliary)["weight"].shape == (3, 64)
        with torch.no_grad():
            for module in (head, auxiliary):
                for parameter in module.parameters():
                    parameter.zero_()
            # (3, 1, 1)/5 for the auxiliary classes.
            auxiliary.get_parameter("bias")[0] = math.log(3)
        with torch.no_grad():
            losses = phase.objective(batch(phase, [1, 4]))
        assert (losses["classification"].weight, losses["auxiliary"].weight) == (1.0, 0.5)
        assert float(losses["classification"].value) == pytest.approx(math.log(5))
        # −ln(3/5) for the old class 1 and −ln(1/5) for the new class 4.
        expected = -(math.log(3 / 5) + math.log(1 / 5)) / 2
        assert float(losses["auxiliary"].value) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("train_base", [True, False])
class TestTwoTasks:
    def test_versions_share_what_does_not_move(self, train_base: bool, tmp_path: Path) -> None:
        home = tmp_path / "home"
        taught(home, train_base=train_base)
        first, second = (ModelStore.open(home).document(number).parts for number in (1, 2))
        assert list(first) == ["trunk", "backbone.0", "head", "class_means"]
        assert list(second) == ["trunk", "backbone.0", "backbone.1", "head", "class_means"]
        assert first["backbone.0"] == second["backbone.0"]
        assert (first["trunk"] == second["trunk"]) is not train_base


def test_size_counts_the_trunk_once() -> None:
    made = taught(tasks=3)
    size = made.size()
    assert size.num_backbones == 3
    assert size.backbone_parameters == TRUNK + 3 * BRANCH
    assert size.head_parameters == 4 * 192 + 4
