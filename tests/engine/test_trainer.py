"""The trainer against arithmetic by hand, and what it promises about modules and draws."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.base.randomness import generator
from grace.data.images import LabelledImages, TensorImages
from grace.engine.parts import frozen as frozen_parts
from grace.engine.phase import Batch, Loss, Objective, Part, Phase, Sweep
from grace.engine.reducers import Collect
from grace.engine.trainer import NonFiniteLossError, Trainer
from grace.methods.classification import classification
from grace.nn.heads import LinearHead
from grace.nn.resnets import CifarResNet
from grace.settings.recipe import Recipe
from support.hand_worked import Times, trainer, white
from support.tiny_streams import labelled, recipe, state
from support.typed import typed


@final
class Scale(nn.Module):
    """One parameter w: images (B, C, H, W) → w · mean pixel, (B, 1)."""

    calls = 0

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(value))

    @override
    def forward(self, images: Tensor) -> Tensor:
        if isinstance(images, Tensor):  # not the proxy of a trace
            Scale.calls += 1
        return self.weight * images.mean(dim=(1, 2, 3))[:, None]


def squares(batch: Batch) -> dict[str, Loss]:
    """½(f − y)², whose gradient at f = w is w − y."""
    return {"squares": Loss(0.5 * (batch["backbone"][:, 0] - batch.labels).square().mean())}


def phase(
    backbone: nn.Module,
    data: LabelledImages,
    objective: Objective = squares,
    recipe: Recipe | None = None,
    head: nn.Module | None = None,
    frozen: Sequence[nn.Module] = (),
    **fields: Any,
) -> Phase:
    """Parts "0", "1", … that are frozen, "backbone", and "head" over it, if there is one."""
    parts = {**frozen_parts(frozen), "backbone": Part(backbone)}
    if head is not None:
        parts["head"] = Part(head, ["backbone"])
    return Phase(
        parts=parts,
        data=data,
        objective=objective,
        recipe=recipe or Recipe(epochs=1, batch_size=8, lr=0.1),
        **({"name": "test"} | fields),
    )


def train_resnet(made: Trainer, name: str = "grow", backbone: nn.Module | None = None) -> nn.Module:
    """Train a ResNet-8, or a given backbone of 64 features, for two epochs on two classes."""
    backbone = backbone or CifarResNet(8, 3, generator(5, "backbone"))
    head = LinearHead(64, 2, generator(5, "head"))
    made.optimise(
        phase(
            backbone,
            labelled({0: 10, 1: 9}),
            classification,
            recipe(epochs=2),
            name=name,
            head=head,
        )
    )
    return backbone


class TestSteps:
    def test_one_step_by_hand(self) -> None:
        backbone = Scale(2.0)
        trainer().optimise(
            phase(
                backbone,
                white([0, 0, 1]),
                recipe=Recipe(epochs=1, batch_size=8, lr=0.1, weight_decay=0.1),
            )
        )
        # Gradient: mean of (2 − 0), (2 − 0), (2 − 1) = 5/3; decay 0.1·2; the first momentum
        # buffer is the gradient itself: 2 − 0.1·(5/3 + 0.2).
        assert float(backbone.weight) == pytest.approx(2 - 0.1 * (5 / 3 + 0.2), rel=1e-6)

    def test_momentum_decay_and_schedule_by_hand(self) -> None:
        backbone = Scale(2.0)
        rule = Recipe(
            epochs=3,
            batch_size=4,
            lr=0.1,
            momentum=0.5,
            weight_decay=0.2,
            milestones=(2,),
            decay=0.1,
        )
        trainer().optimise(phase(backbone, white([0, 0]), recipe=rule))
        # One batch per epoch; with y = 0 the decayed gradient is w + 0.2·w = 1.2·w.
        # v1 = 2.4            w1 = 2 − 0.1·2.4       = 1.76
        # v2 = 1.2 + 2.112    w2 = 1.76 − 0.1·3.312  = 1.4288
        # v3 = 1.656 + 1.71456, lr 0.01 from epoch 2 on: w3 = 1.4288 − 0.01·3.37056
        assert float(backbone.weight) == pytest.approx(1.4288 - 0.0337056, rel=1e-6)

    def test_the_cosine_schedule_is_stepped_per_epoch_not_per_batch(self) -> None:
        backbone = Scale(1.0)
        rule = Recipe(epochs=2, batch_size=2, lr=0.1, momentum=0, weight_decay=0, schedule="cosine")
        trainer().optimise(phase(backbone, white([0] * 4), recipe=rule))
        # Two batches per epoch, each w ← (1 − lr)·w, at rates 0.1 and 0.05.
        assert float(backbone.weight) == pytest.approx(0.9**2 * 0.95**2, rel=1e-6)

    def test_losses_are_means_per_image_of_the_last_epoch(self) -> None:
        def objective(batch: Batch) -> dict[str, Loss]:
            value = batch.labels.double().mean() + batch.epoch + 0 * batch["backbone"].sum()
            return {"label": Loss(value)}

        # Batches of 2, 2 and 1: the mean of batch means would be 5/3 or 5/6, never 1.
        rule = Recipe(epochs=3, batch_size=2)
        result = trainer().optimise(phase(Scale(1.0), white([0, 0, 0, 0, 5]), objective, rule))
        assert result.losses == {"label": pytest.approx(1.0 + 2)}


class TestModules:
    def test_train_mode_and_gradients_only_during_the_phase(self) -> None:
        backbone, head = CifarResNet(8, 3, generator(0, "b")), LinearHead(64, 2, generator(0, "h"))
        backbone.eval().requires_grad_(False)
        before, modes = state(backbone), []

        def objective(batch: Batch) -> dict[str, Loss]:
            modes.append((backbone.training, backbone.stem[1].training, head.training))
            assert all(p.requires_grad for m in (backbone, head) for p in m.parameters())
            return classification(batch)

        trainer().optimise(phase(backbone, labelled({0: 4, 1: 4}), objective, recipe(), head=head))
        assert set(modes) == {(True, True, True)}
        assert not backbone.training
        assert not head.training
        assert not any(p.requires_grad for m in (backbone, head) for p in m.parameters())
        after = state(backbone)
        assert not torch.equal(before["stem.1.running_mean"], after["stem.1.running_mean"])
        assert int(after["stem.1.num_batches_tracked"]) == 1

    def test_a_failed_phase_leaves_eval_mode_too(self) -> None:
        backbone = Scale(1.0)

        def objective(batch: Batch) -> dict[str, Loss]:
            raise RuntimeError("out of luck")

        with pytest.raises(RuntimeError, match="out of luck"):
            trainer().optimise(phase(backbone, white([0]), objective))
        assert not backbone.training
        assert not backbone.weight.requires_grad


def drifted(seed: int) -> CifarResNet:
    """A ResNet-8 whose batch norm has seen something, in eval mode."""
    module = CifarResNet(8, 3, generator(seed, "frozen")).train()
    with torch.no_grad():
        module(torch.rand(16, 3, 8, 8, generator=generator(seed, "seen")))
    return module.eval().requires_grad_(False)


class TestDraws:
    def test_dropout_is_repeatable_and_leaves_the_global_generator_alone(self) -> None:
        def dropped(seed: int) -> Mapping[str, Tensor]:
            inner = CifarResNet(8, 3, generator(5, "backbone"))
            return state(train_resnet(trainer(seed), backbone=nn.Sequential(inner, nn.Dropout())))

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            before = torch.get_rng_state()
            one = dropped(1)
            assert torch.equal(torch.get_rng_state(), before)
            torch.manual_seed(2)
            torch.testing.assert_close(one, dropped(1), rtol=0, atol=0)


class TestSweeps:
    def outputs(self, made: Trainer, *, augmented: bool, name: str = "assess") -> Tensor:
        return typed(
            Tensor,
            made.sweep(
                Sweep(
                    name=name,
                    parts=frozen_parts([nn.Flatten()]),
                    data=labelled({0: 6, 1: 5}),
                    reducer=Collect(),
                    augmented=augmented,
                )
            ),
        )

    @pytest.mark.parametrize("size", [1, 3, 500])
    def test_plain_sweeps_pass_in_order_through_the_test_transform(self, size: int) -> None:
        data = typed(TensorImages, labelled({0: 6, 1: 5}).images)
        expected = data.pixels.flatten(1).double() / 255
        outputs = self.outputs(trainer(augmentation="shift", eval_batch_size=size), augmented=False)
        torch.testing.assert_close(outputs.double(), expected, atol=1e-6, rtol=0)

    def test_augmented_sweeps_draw_once_per_image_however_they_are_cut(self) -> None:
        one, two, whole = (
            self.outputs(trainer(1, "shift", eval_batch_size=size), augmented=True)
            for size in (2, 5, 500)
        )
        assert torch.equal(one, whole)
        assert torch.equal(two, whole)

    def test_augmented_sweeps_draw_by_seed_task_and_name(self) -> None:
        later = trainer(1, "shift")
        later.start_task(2)
        one = self.outputs(trainer(1, "shift"), augmented=True)
        others = [
            self.outputs(trainer(2, "shift"), augmented=True),
            self.outputs(later, augmented=True),
            self.outputs(trainer(1, "shift"), augmented=True, name="other"),
        ]
        assert not any(torch.equal(one, other) for other in others)


class TestPrecision:
    def test_bfloat16_trains_on_the_cpu_with_float32_weights(self) -> None:
        kinds: set[torch.dtype] = set()
        backbone, head = CifarResNet(8, 3, generator(0, "b")), LinearHead(64, 2, generator(0, "h"))

        def objective(batch: Batch) -> dict[str, Loss]:
            kinds.add(batch["backbone"].dtype)
            return classification(batch)

        made = trainer(precision="bfloat16")
        data = labelled({0: 12, 1: 12})
        first = made.optimise(phase(backbone, data, objective, recipe(), head=head))
        last = made.optimise(phase(backbone, data, objective, recipe(epochs=6), head=head))
        assert kinds == {torch.bfloat16}
        assert {p.dtype for p in backbone.parameters()} == {torch.float32}
        assert last.losses["classification"] < 0.5 * first.losses["classification"]

    def test_reducers_compute_in_float32(self) -> None:
        # A product of float32 matrices would be rounded to bfloat16 under autocast, and nearest
        # means would tie.
        kinds: list[torch.dtype] = []

        class Products:
            def update(self, outputs: Tensor, labels: Tensor) -> None:
                kinds.append((outputs @ outputs.T).dtype)

            def result(self) -> None:
                """Nothing is kept."""

        data = labelled({0: 5})
        trainer(precision="bfloat16").sweep(
            Sweep(name="evaluate", parts=frozen_parts([drifted(1)]), data=data, reducer=Products())
        )
        assert kinds == [torch.float32]


@final
class Heard:
    """Notes every event."""

    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []

    def __getattr__(self, event: str) -> Callable[..., None]:
        return lambda *details: self.events.append((event, *details))


def test_progress_hears_every_step_and_the_work_is_noted() -> None:
    heard: Any = Heard()
    made = trainer(progress=heard)
    rule = Recipe(epochs=2, batch_size=2, lr=1e-3, milestones=(1,))
    made.optimise(phase(Scale(1.0), white([0, 0, 0]), recipe=rule, name="base"))
    made.run(
        Sweep(name="herd", parts=frozen_parts([Scale(1.0)]), data=white([0, 0]), reducer=Collect())
    )
    names = [event[0] for event in heard.events]
    assert names == [
        "phase_started",
        "epoch_finished",
        "epoch_finished",
        "phase_finished",
        "sweep_started",
    ]
    assert heard.events[0] == ("phase_started", "base", 2, 3)
    assert heard.events[1][1:4] == ("base", 1, 2)
    assert heard.events[1][5] == pytest.approx(1e-3)
    assert heard.events[2][5] == pytest.approx(1e-4)
    assert heard.events[4] == ("sweep_started", "herd", 2)
    assert [(w.name, w.epochs, w.images) for w in made.work] == [("base", 2, 3), ("herd", 0, 2)]
    spent = made.work[0].seconds
    assert 0 < spent.data + spent.frozen + spent.training <= spent.total
    made.start_task(2)
    assert made.work == []


def test_weights_that_the_last_step_broke_are_refused() -> None:
    # One step of lr 1e38 on a finite loss: the loss was computed before the step.
    rule = Recipe(epochs=1, batch_size=4, lr=1e38, momentum=0.0, weight_decay=0.0)

    def steep(batch: Batch) -> dict[str, Loss]:
        return {"steep": Loss(1e3 * batch["backbone"].sum())}

    with pytest.raises(NonFiniteLossError, match="weights are not finite after phase 'base'"):
        trainer().optimise(phase(Scale(1.0), white([0, 0]), steep, rule, name="base"))


def test_outputs_that_a_phase_made_too_large_are_blamed_on_it() -> None:
    made, one = trainer(), Scale(1e10)
    made.run(phase(one, white([0, 0]), recipe=Recipe(epochs=1, batch_size=4, lr=1e-3), name="base"))
    parts = {"one": Part(one, trains=False), "two": Part(Times(1e35), ["one"], trains=False)}
    sweep = Sweep(name="herd", parts=parts, data=white([0, 0]), reducer=Collect())
    with pytest.raises(NonFiniteLossError, match="not finite after phase 'base', epoch 1, where"):
        made.run(sweep)
