"""Phases whose backbones share a trunk, against arithmetic by hand.

Images are white: a normalised pixel is 1, so that scaling by t, then taking w times the mean, is
w·t.
"""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from grace.base.randomness import generator
from grace.engine.parts import changing, named_parameters
from grace.engine.phase import Batch, Loss, Part, Phase
from grace.methods.classification import classification
from grace.nn.branching import split
from grace.nn.heads import LinearHead
from grace.nn.resnets import CifarResNet
from support.hand_worked import MeanTimes, Times, phase, recipe, trainer, value_of, white
from support.tiny_streams import labelled, same, state


def branches(
    trunk: nn.Module, old: Sequence[nn.Module], new: nn.Module, *, trains: bool
) -> dict[str, Part]:
    """Frozen branches and one that trains, behind one trunk."""
    frozen = {f"old.{i}": Part(own, ["trunk"], trains=False) for i, own in enumerate(old)}
    return {"trunk": Part(trunk, trains=trains), **frozen, "new": Part(new, ["trunk"])}


def squares(batch: Batch) -> dict[str, Loss]:
    """½(f_old + f_new − y)²."""
    total = batch["old.0"][:, 0] + batch["new"][:, 0]
    return {"squares": Loss(0.5 * (total - batch.labels).square().mean())}


@pytest.mark.parametrize("trains", [True, False])
def test_one_step_by_hand(trains: bool) -> None:
    trunk, old, new = Times(1.5), MeanTimes(3.0), MeanTimes(2.0)
    parts = branches(trunk, [old], new, trains=trains)
    trainer().optimise(phase(parts, objective=squares, data=white([1, 1])))
    # f = 3·1.5 + 2·1.5 = 7.5, so f − y = 6.5. Gradients: of the new branch 6.5·1.5, of the trunk
    # 6.5·(3 + 2), through the frozen branch too.
    assert value_of(new) == pytest.approx(2 - 0.1 * 6.5 * 1.5, rel=1e-6)
    assert value_of(trunk) == pytest.approx(1.5 - 0.1 * 6.5 * 5 if trains else 1.5, rel=1e-6)
    assert value_of(old) == 3.0


def resnet_phase(
    *, trains: bool, epochs: int = 2, look: Callable[[Batch], None] = lambda batch: None
) -> Phase:
    """An old and a new branch of a ResNet-8, and a head over both."""
    trunk, old = split(CifarResNet(8, 3, generator(1, "backbone")).eval())
    _, new = split(CifarResNet(8, 3, generator(2, "backbone")).eval())
    head = LinearHead(128, 2, generator(3, "head"))

    def objective(batch: Batch) -> dict[str, Loss]:
        look(batch)
        return classification(batch)

    return phase(
        branches(trunk, [old], new, trains=trains) | {"head": Part(head, ["old.0", "new"])},
        objective=objective,
        recipe=recipe(epochs=epochs, batch_size=16, lr=0.05, momentum=0.9, weight_decay=5e-4),
        data=labelled({0: 10, 1: 9}),
    )


@pytest.mark.parametrize("trains", [True, False])
def test_a_trunk_moves_whole_or_not_at_all_and_frozen_branches_never(trains: bool) -> None:
    item = resnet_phase(trains=trains)
    trunk, old, new = (state(item.parts[name].module) for name in ("trunk", "old.0", "new"))
    trainer().optimise(item)
    now = state(item.parts["trunk"].module)
    if trains:
        moved = [name for name in trunk if not torch.equal(now[name], trunk[name])]
        assert moved == list(trunk)  # running statistics and counters of batches too
    else:
        torch.testing.assert_close(now, trunk, rtol=0, atol=0)
    torch.testing.assert_close(state(item.parts["old.0"].module), old, rtol=0, atol=0)
    assert not same(state(item.parts["new"].module), new)
    modules = [item.parts[name].module for name in ("trunk", "new", "head")]
    assert not any(module.training for part in modules for module in part.modules())
    assert all(p.grad is None for part in modules for p in part.parameters())
    assert changing(item.parts) == (modules if trains else modules[1:])
    assert named_parameters(item.parts).keys() == {
        f"{name}.{own}"
        for name in (["trunk"] if trains else []) + ["new", "head"]
        for own, _ in item.parts[name].module.named_parameters()
    }
    parameters = named_parameters(item.parts).values()
    assert not any(parameter.requires_grad for parameter in parameters)
