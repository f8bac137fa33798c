"""Graphs of parts: what runs, with or without autograd, in which mode, and what may change."""

from typing import Any, final

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.base.randomness import generator
from grace.engine import parts as graph
from grace.engine.phase import Batch, Loss, Part
from grace.nn.expandable import copy_of
from grace.nn.resnets import CifarResNet
from support.hand_worked import MeanTimes, Times, phase, recipe, squares, trainer, value_of, white
from support.tiny_streams import labelled, state
from support.typed import present


@final
class Noting(nn.Module):
    """Notes that it ran, and passes its input on."""

    def __init__(self, name: str, log: list[str]) -> None:
        super().__init__()
        self.name = name
        self.log = log

    @override
    def forward(self, *inputs: Tensor) -> Tensor:
        self.log.append(self.name)
        return inputs[0]


class TestGraph:
    def test_parts_run_once_in_their_order_and_read_what_stands_before(self) -> None:
        log: list[str] = []
        parts = {
            "b": Part(Noting("b", log), trains=False),
            "a": Part(Noting("a", log), ["b"], trains=False),
            "c": Part(Noting("c", log), ["images"], trains=False),
            "f": Part(MeanTimes(1.0), ["a"]),
        }
        trainer().optimise(phase(parts, data=white([0] * 16)))
        # Two batches of eight.
        assert log == ["b", "a", "c"] * 2

    def test_the_last_are_those_that_no_other_reads(self) -> None:
        parts = {
            "trunk": Part(Times(1.0)),
            "a": Part(Times(1.0), ["trunk"]),
            "b": Part(Times(1.0), ["trunk"]),
            "head": Part(Times(1.0), ["b"]),
        }
        assert graph.last(parts) == ["a", "head"]


class TestAutograd:
    def parts(self, trains: str) -> dict[str, Part]:
        """before → middle → after, and beside, of which one trains."""
        reads = {"before": "images", "middle": "before", "after": "middle", "beside": "before"}
        return {
            name: Part(Times(1.0), [read], trains=name == trains) for name, read in reads.items()
        }

    @pytest.mark.parametrize(
        ("trains", "off"),
        [
            ("before", set()),
            ("middle", {"before", "beside"}),
            ("after", {"before", "middle", "beside"}),
            ("beside", {"before", "middle", "after"}),
        ],
    )
    def test_it_is_off_where_neither_a_part_nor_anything_before_it_trains(
        self, trains: str, off: set[str]
    ) -> None:
        parts = self.parts(trains)
        assert graph.without_autograd(parts) == off
        seen: dict[str, bool] = {}

        def objective(batch: Batch) -> dict[str, Loss]:
            seen.update({name: batch[name].requires_grad for name in parts})
            return {"sum": Loss(torch.stack([batch[name].mean() for name in parts]).sum())}

        trainer().optimise(phase(parts, objective=objective))
        assert {name for name, is_on in seen.items() if not is_on} == off

    @pytest.mark.parametrize("fresh", [True, False])
    def test_a_frozen_part_behind_one_that_trains_passes_gradients_on_and_keeps_none(
        self, fresh: bool
    ) -> None:
        before, frozen = Times(2.0), MeanTimes(3.0).requires_grad_(fresh)
        parts = {"before": Part(before), "f": Part(frozen, ["before"], trains=False)}
        trainer().optimise(phase(parts))
        # f = 6, and the gradient of ½f² with respect to the first is 6·3.
        assert value_of(before) == pytest.approx(2 - 0.1 * 18)
        assert value_of(frozen) == 3.0
        assert frozen.value.grad is None


class TestByName:
    """Only some of a part's parameters train."""

    def parts(self) -> tuple[MeanTimes, dict[str, Part]]:
        module = MeanTimes(2.0, bias=1.0)
        return module, {"f": Part(module, trains=["bias"])}

    def test_the_named_ones_move_alone(self) -> None:
        module, parts = self.parts()
        assert list(graph.named_parameters(parts)) == ["f.bias"]
        assert list(graph.named_state(parts)) == ["f.bias"]
        seen: list[tuple[bool, bool]] = []

        def objective(batch: Batch) -> dict[str, Loss]:
            seen.append((module.bias.requires_grad, module.value.requires_grad))
            return squares(batch)

        trainer().optimise(phase(parts, objective=objective))
        assert (value_of(module), value_of(module, "bias")) == pytest.approx((2.0, 1 - 0.1 * 3))
        assert seen == [(True, False)]
        assert not any(parameter.requires_grad for parameter in module.parameters())
        assert all(parameter.grad is None for parameter in module.parameters())


class TestModes:
    def modes(self, **part: Any) -> tuple[bool, dict[str, Tensor], dict[str, Tensor]]:
        """Whether a batch norm was in train mode, and its state before and after a phase."""
        norm = nn.BatchNorm2d(3)
        before, seen = state(norm), list[bool]()

        def objective(batch: Batch) -> dict[str, Loss]:
            seen.append(norm.training)
            return squares(batch)

        parts = {"norm": Part(norm, **part), "f": Part(MeanTimes(1.0, bias=1.0), ["norm"])}
        trainer().optimise(phase(parts, objective=objective))
        assert not norm.training
        return seen[0], before, state(norm)

    def test_train_mode_without_training_moves_running_statistics_alone(self) -> None:
        is_training, before, after = self.modes(trains=False, mode="train")
        assert is_training
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        assert moved == {"running_mean", "running_var", "num_batches_tracked"}
        # Momentum 0.1 from 0 towards the mean 1, and from 1 towards the variance 0.
        assert after["running_mean"].tolist() == pytest.approx([0.1] * 3)
        assert after["running_var"].tolist() == pytest.approx([0.9] * 3)

    def test_eval_mode_while_training_keeps_running_statistics(self) -> None:
        is_training, before, after = self.modes(mode="eval")
        assert not is_training
        moved = {name for name in before if not torch.equal(before[name], after[name])}
        # Images of 1 minus the mean 0: both affine parameters have gradients.
        assert moved == {"weight", "bias"}


class TestRun:
    """A part on other inputs than the batch's, within an objective."""

    @pytest.mark.parametrize(("mode", "batches"), [("eval", 1), (None, 2), ("train", 2)])
    def test_in_eval_mode_it_leaves_running_statistics_alone(self, mode: Any, batches: int) -> None:
        norm = nn.BatchNorm2d(3)

        def objective(batch: Batch) -> dict[str, Loss]:
            inside = batch.run("norm", 3 * batch.images, mode=mode)
            assert norm.training
            if mode == "eval":
                # By the running statistics: mean 0.1 and variance 0.9 after the batch itself.
                expected = (3 - 0.1) / (0.9 + 1e-5) ** 0.5
                assert float(inside.detach().mean()) == pytest.approx(expected, rel=1e-5)
            return squares(batch)

        parts = {"norm": Part(norm), "f": Part(MeanTimes(1.0), ["norm"])}
        trainer().optimise(phase(parts, objective=objective))
        assert int(norm.num_batches_tracked or 0) == batches
        # From 0: 0.1 towards 1, then a tenth of the way towards 3.
        expected = 0.1 if batches == 1 else 0.9 * 0.1 + 0.1 * 3
        assert present(norm.running_mean).tolist() == pytest.approx([expected] * 3)

    def test_a_frozen_part_gives_what_its_unfolded_module_gives(self) -> None:
        backbone = CifarResNet(8, 3, generator(1, "parts")).train()
        with torch.no_grad():
            backbone(torch.rand(16, 3, 8, 8, generator=generator(1, "seen")))
        backbone.eval().requires_grad_(False)
        twin, before = copy_of(backbone), state(backbone)
        checked: list[bool] = []

        def objective(batch: Batch) -> dict[str, Loss]:
            inputs = (0.5 * batch.images).requires_grad_()
            found = batch.run("old", inputs)
            (gradient,) = torch.autograd.grad(found.square().sum(), inputs)
            checked.append(bool(gradient.any()))
            torch.testing.assert_close(found, twin(inputs), rtol=1e-4, atol=1e-5)
            return squares(batch)

        parts = {"old": Part(backbone, trains=False), "f": Part(MeanTimes(1.0))}
        data = labelled({0: 5, 1: 5})
        trainer().optimise(phase(parts, objective=objective, data=data, recipe=recipe(lr=1e-3)))
        assert checked == [True, True]
        torch.testing.assert_close(state(backbone), before, rtol=0, atol=0)


@pytest.mark.parametrize("mode", [None, "train", "eval"])
def test_every_module_of_a_part_has_its_own_mode_again(mode: Any) -> None:
    """A batch norm kept in eval mode inside a part that trains, say."""
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)).train()
    module[0].eval()
    with graph.in_mode(module, mode):
        inside = [part.training for part in module.modules()]
    # The whole, the batch norm, the layer.
    expected = {None: [True, False, True], "train": [True] * 3, "eval": [False] * 3}
    assert inside == expected[mode]
    assert [part.training for part in module.modules()] == [True, False, True]
