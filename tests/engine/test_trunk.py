"""Phases whose backbones share a trunk, against arithmetic by hand.

Images are white: a normalised pixel is 1, so that scaling by t, then taking w times the mean, is
w·t.
"""

from collections.abc import Callable
from typing import final

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.configs.experiment import EngineSettings
from grace.configs.recipe import Recipe
from grace.data.augmentation import build_augmentation
from grace.data.images import LabelledImages, TensorImages
from grace.engine.checkpoint import Snapshot
from grace.engine.phase import Batch, Loss, Phase
from grace.engine.trainer import NonFiniteLossError, Trainer
from grace.networks.branching import split
from grace.networks.cifar_resnet import CifarResNet
from grace.networks.heads import LinearHead
from grace.objectives.classification import cross_entropy
from grace.randomness import generator
from tiny_streams import labelled, recipe, same, state


def trainer() -> Trainer:
    settings = EngineSettings(device="cpu", compile=False, threads=1)
    made = Trainer(settings, build_augmentation("none", (0.0,) * 3, (1.0,) * 3, 8), 1)
    made.start_task(1)
    return made


def white(*labels: int) -> LabelledImages:
    pixels = torch.full((len(labels), 3, 8, 8), 255, dtype=torch.uint8)
    return LabelledImages(TensorImages(pixels), torch.tensor(labels))


@final
class Times(nn.Module):
    """x → t·x."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value), requires_grad=False)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        return self.value * inputs


@final
class MeanTimes(nn.Module):
    """x → w · mean of x, (B, 1)."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value), requires_grad=False)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        return self.value * inputs.mean(dim=(1, 2, 3))[:, None]


PLAIN = Recipe(epochs=1, batch_size=4, lr=0.1, momentum=0, weight_decay=0)


def squares(batch: Batch) -> dict[str, Loss]:
    """½(f_old + f_new − y)²."""
    total = batch.frozen[0][:, 0] + batch.learned[0][:, 0]
    return {"squares": Loss(0.5 * (total - batch.labels).square().mean())}


@pytest.mark.parametrize("trains", [True, False])
def test_one_step_by_hand(trains: bool) -> None:
    trunk, old, new = Times(1.5), MeanTimes(3.0), MeanTimes(2.0)
    trainer().optimise(
        Phase(
            name="test",
            backbones=[new],
            frozen=[old],
            trunk=trunk,
            trains_trunk=trains,
            objective=squares,
            recipe=PLAIN,
            data=white(1, 1),
        )
    )
    # f = 3·1.5 + 2·1.5 = 7.5, so f − y = 6.5. Gradients: of the new branch 6.5·1.5, of the trunk
    # 6.5·(3 + 2), through the frozen branch too.
    assert float(new.value) == pytest.approx(2 - 0.1 * 6.5 * 1.5, rel=1e-6)
    assert float(trunk.value) == pytest.approx(1.5 - 0.1 * 6.5 * 5 if trains else 1.5, rel=1e-6)
    assert float(old.value) == 3.0


@pytest.mark.parametrize("trains", [True, False])
def test_the_trunk_runs_once_per_batch_and_tells_autograd_only_if_it_trains(trains: bool) -> None:
    graphs: list[list[bool]] = []

    def objective(batch: Batch) -> dict[str, Loss]:
        graphs.append([output.requires_grad for output in (*batch.frozen, *batch.learned)])
        return squares(batch)

    seen: list[nn.Module] = []

    def note(module: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Tensor):  # not the proxy of a trace
            seen.append(module)

    handle = nn.modules.module.register_module_forward_hook(note)
    try:
        trainer().optimise(
            Phase(
                name="test",
                backbones=[MeanTimes(2.0)],
                frozen=[MeanTimes(3.0), MeanTimes(4.0)],
                trunk=Times(1.5),
                trains_trunk=trains,
                objective=objective,
                recipe=PLAIN,
                data=white(0, 0, 0, 0, 1, 1, 1),
            )
        )
    finally:
        handle.remove()
    assert graphs == [[trains, trains, True]] * 2
    # Two batches, of four and three images.
    assert sum(isinstance(module, Times) for module in seen) == 2
    assert sum(isinstance(module, MeanTimes) for module in seen) == 6


def resnet_phase(
    *, trains: bool, epochs: int = 2, look: Callable[[Batch], None] = lambda batch: None
) -> Phase:
    """An old and a new branch of a ResNet-8, and a head over both."""
    trunk, old = split(CifarResNet(8, 3, generator(1, "backbone")).eval())
    _, new = split(CifarResNet(8, 3, generator(2, "backbone")).eval())
    head = LinearHead(128, 2, generator(3, "head"))

    def objective(batch: Batch) -> dict[str, Loss]:
        look(batch)
        logits = head(torch.cat([*batch.frozen, *batch.learned], dim=1))
        return {"classification": Loss(cross_entropy(logits, batch.labels))}

    return Phase(
        name="grow",
        backbones=[new],
        heads=[head],
        frozen=[old],
        trunk=trunk,
        trains_trunk=trains,
        objective=objective,
        recipe=recipe(epochs),
        data=labelled({0: 10, 1: 9}),
    )


@pytest.mark.parametrize("trains", [True, False])
def test_a_trunk_moves_whole_or_not_at_all_and_frozen_branches_never(trains: bool) -> None:
    phase = resnet_phase(trains=trains)
    assert phase.trunk is not None
    trunk, old, new = (state(m) for m in (phase.trunk, phase.frozen[0], phase.backbones[0]))
    trainer().optimise(phase)
    now = state(phase.trunk)
    if trains:
        moved = [name for name in trunk if not torch.equal(now[name], trunk[name])]
        assert moved == list(trunk)  # running statistics and counters of batches too
    else:
        assert same(now, trunk)
    assert same(state(phase.frozen[0]), old)
    assert not same(state(phase.backbones[0]), new)
    modules = [phase.trunk, *phase.backbones, *phase.heads]
    assert not any(module.training for part in modules for module in part.modules())
    assert all(p.grad is None for part in modules for p in part.parameters())
    parameters = [p for part in (*phase.trained, *phase.heads) for p in part.parameters()]
    assert not any(parameter.requires_grad for parameter in parameters)


def test_behind_a_trunk_in_train_mode_batch_norm_of_frozen_branches_stays_in_eval_mode() -> None:
    checked: list[int] = []

    def look(batch: Batch) -> None:
        if not checked:
            with torch.no_grad():
                maps = twin.train()(batch.images)
                torch.testing.assert_close(batch.frozen[0].detach(), branch.eval()(maps))
        checked.append(1)

    phase = resnet_phase(trains=True, look=look)
    twin, branch = split(CifarResNet(8, 3, generator(1, "backbone")))
    trainer().optimise(phase)
    assert checked


@final
class Shelf:
    """Keeps the snapshot of one epoch."""

    def __init__(self, epoch: int = 0, snapshot: Snapshot | None = None) -> None:
        self.epoch = epoch
        self.snapshot = snapshot

    def saved(self) -> Snapshot | None:
        return self.snapshot

    def offer(self, take: Callable[[], Snapshot], *, is_last: bool) -> None:
        snapshot = take()
        if snapshot.epochs == self.epoch:
            tensors = {name: tensor.clone() for name, tensor in snapshot.tensors.items()}
            self.snapshot = Snapshot(
                snapshot.epochs, tensors, snapshot.losses, snapshot.seconds, snapshot.scaler
            )


def test_a_phase_with_a_trunk_goes_on_from_a_snapshot_as_if_it_had_never_stopped() -> None:
    straight, shelf = resnet_phase(trains=True, epochs=3), Shelf(epoch=2)
    trainer().optimise(straight, shelf)
    assert shelf.snapshot is not None
    resumed = resnet_phase(trains=True, epochs=3)
    trainer().optimise(resumed, Shelf(snapshot=shelf.snapshot))
    for one, two in zip(
        (straight.trunk, *straight.backbones, *straight.heads),
        (resumed.trunk, *resumed.backbones, *resumed.heads),
        strict=True,
    ):
        assert one is not None
        assert two is not None
        assert same(state(one), state(two))


def test_a_trunk_that_breaks_is_noticed() -> None:
    phase = resnet_phase(trains=True, epochs=1)

    def breaks(batch: Batch) -> dict[str, Loss]:
        # Finite losses whose gradient is not: d√x at 0.
        return {"root": Loss((batch.learned[0] * 0).sum().sqrt())}

    broken = Phase(
        name="grow",
        backbones=phase.backbones,
        trunk=phase.trunk,
        trains_trunk=True,
        objective=breaks,
        recipe=recipe(1, batch_size=32),
        data=phase.data,
    )
    with pytest.raises(NonFiniteLossError, match="weights are not finite after phase 'grow'"):
        trainer().optimise(broken)
