"""WA against numbers worked by hand from methods/wa.py and
docs/protocols.md#weight-alignment."""

import math

import pytest
import torch

from grace.data.scenario import Task
from grace.engine.phase import Phase
from grace.methods.wa import WA
from support.driven import batch, drive, forget, head_of
from support.tiny_streams import labelled, learner, recipe, task
from support.typed import typed

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def wa() -> WA:
    return typed(WA, learner(WA.Settings(base=recipe(), update=recipe())).method)


def test_the_loss_by_hand() -> None:
    method = wa()
    drive(method, task(1, {0: 4, 1: 4, 2: 4}, 0))
    with torch.no_grad():
        method.network.head.weight.zero_()
        method.network.head.bias.copy_(torch.tensor([2 * math.log(2), 0.0, 0.0]))
    phase = typed(Phase, next(method.learn(task(2, {3: 4, 4: 4}, 3))))
    head = head_of(phase)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
    losses = phase.objective(batch(phase, [4]))
    # λ = 3/5.
    assert losses["classification"].weight == pytest.approx(0.4)
    assert losses["distillation"].weight == pytest.approx(0.6)
    assert float(losses["classification"].value.detach()) == pytest.approx(math.log(5), abs=1e-6)
    # Against an even student the cross-entropy with any teacher is ln 3, without T².
    assert float(losses["distillation"].value.detach()) == pytest.approx(math.log(3), abs=1e-6)
    # And against (4 ln 2, 0, 0)/2, that is (4, 1, 1)/6, with a teacher (2, 1, 1)/4:
    with torch.no_grad():
        head.bias[0] = 4 * math.log(2)
    losses = phase.objective(batch(phase, [4]))
    expected = -0.5 * math.log(4 / 6) - 0.5 * math.log(1 / 6)
    assert float(losses["distillation"].value.detach()) == pytest.approx(expected, abs=1e-6)


def test_forgotten_classes_do_not_count() -> None:
    method = wa()
    drive(method, task(1, {0: 4, 1: 4, 2: 4}, 0))
    forget(method, [0])
    work = Task(number=2, data=labelled({3: 4}), new_classes=range(3, 4), forgotten=frozenset([0]))
    phase = typed(Phase, next(method.learn(work)))
    losses = phase.objective(batch(phase, [3]))
    # Two of the three classes that are left are old.
    assert losses["distillation"].weight == pytest.approx(2 / 3)
    assert bool(losses["distillation"].value.isfinite())


def test_new_rows_are_aligned_and_teach_the_next_task() -> None:
    method = wa()
    drive(method, task(1, {0: 4, 1: 4}, 0))
    # Lengths 8·(1, 3) of 64 equal weights, mean 16.
    with torch.no_grad():
        method.network.head.weight.copy_(torch.tensor([[1.0], [3.0]]).expand(2, 64))

    def lengthened(item: object) -> None:
        """What training did: a new row of length 8·4, and a bias."""
        if isinstance(item, Phase):
            with torch.no_grad():
                head_of(item).weight[2:] = 4.0
                head_of(item).bias[2:] = 5.0

    drive(method, task(2, {2: 4}, 2), lengthened)
    head = method.network.head
    # γ = 16/32 = ½: the new row has 2s, the old ones and the bias stay.
    assert head.weight[:, 0].tolist() == pytest.approx([1.0, 3.0, 2.0])
    assert head.bias.tolist() == pytest.approx([0.0, 0.0, 5.0])

    phase = typed(Phase, next(method.learn(task(3, {3: 4}, 3))))
    ones = torch.ones(1, 64) / 64
    losses = phase.objective(batch(phase, [3], {"old.0": ones, "backbone.0": ones}))
    # Teacher logits (1, 3, 2 + 5), the student's the same: the entropy of σ((1, 3, 7)/2).
    target = torch.tensor([0.5, 1.5, 3.5], dtype=torch.float64).softmax(0)
    entropy = float(-(target * target.log()).sum())
    assert float(losses["distillation"].value.detach()) == pytest.approx(entropy, abs=1e-5)
