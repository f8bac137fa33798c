"""Gradient sweeps against arithmetic by hand, and what they leave behind."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.base import tensors
from grace.base.errors import DamagedError
from grace.base.randomness import generator
from grace.data.images import LabelledImages
from grace.engine.journal import Journal
from grace.engine.parts import frozen, named_buffers
from grace.engine.phase import Batch, GradientSweep, Loss, Objective, Part, Sweep
from grace.engine.reducers import Collect, SquaredGradients
from grace.engine.trainer import NonFiniteLossError
from grace.methods.classification import classification
from grace.nn.heads import LinearHead
from grace.nn.resnets import CifarResNet
from support.hand_worked import trainer, white
from support.tiny_streams import labelled, state


@final
class Scale(nn.Module):
    """Images (B, C, H, W) → w · mean pixel, (B, 1); a second parameter has no part in it."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(value))
        self.idle = nn.Parameter(torch.ones(2))

    @override
    def forward(self, images: Tensor) -> Tensor:
        return self.weight * images.mean(dim=(1, 2, 3))[:, None]


def squares(batch: Batch) -> dict[str, Loss]:
    """½(f − y)², whose gradient at f = w is w − y."""
    return {"squares": Loss(0.5 * (batch["backbone.0"][:, 0] - batch.labels).square().mean())}


def sweep(
    backbone: nn.Module,
    data: LabelledImages,
    objective: Objective = squares,
    head: nn.Module | None = None,
    **fields: Any,
) -> GradientSweep:
    given: dict[str, Any] = {"name": "fisher", "batch_size": 8, "reducer": SquaredGradients()}
    parts = {"backbone.0": Part(backbone)}
    if head is not None:
        parts["head"] = Part(head, ["backbone.0"])
    return GradientSweep(parts=parts, data=data, objective=objective, **(given | fields))


def resnet_sweep(backbone: nn.Module, **fields: Any) -> GradientSweep:
    head = LinearHead(64, 2, generator(5, "head"))
    data = labelled({0: 10, 1: 9})
    return sweep(backbone, data, classification, head, **({"batch_size": 8} | fields))


def resnet() -> CifarResNet:
    return CifarResNet(8, 3, generator(5, "backbone")).eval().requires_grad_(False)


class TestGradients:
    def test_squares_of_batch_means_by_hand(self) -> None:
        backbone = Scale(2.0)
        found = trainer().run(sweep(backbone, white([0, 3, 0, 0]), batch_size=1))
        # Batches of one: gradients 2, −1, 2, 2; mean of the squares 13/4.
        assert float(found["backbone.0.weight"]) == pytest.approx(3.25)
        whole = trainer().run(sweep(backbone, white([0, 3, 0, 0]), batch_size=4))
        # One batch: the square of the mean gradient 5/4.
        assert float(whole["backbone.0.weight"]) == pytest.approx(1.5625)

    def test_it_is_in_float32_whatever_the_precision(self) -> None:
        kinds: set[torch.dtype] = set()

        def noting(batch: Batch) -> dict[str, Loss]:
            kinds.add(batch["backbone.0"].dtype)
            return {"mean": Loss(batch["backbone.0"].float().mean())}

        trainer(precision="bfloat16").run(sweep(resnet(), labelled({0: 9}), noting))
        assert kinds == {torch.float32}


class TestBatchNorm:
    def test_statistics_move_by_every_batch(self) -> None:
        norm = nn.BatchNorm2d(3)
        backbone = nn.Sequential(norm, nn.Flatten())
        means: list[float] = []

        def objective(batch: Batch) -> dict[str, Loss]:
            means.append(float(batch["backbone.0"].detach().mean()))
            return {"mean": Loss(batch["backbone.0"].square().mean())}

        trainer().run(sweep(backbone, white([0] * 6), objective, batch_size=3))
        # Batches of mean 1 and variance 0 at momentum 0.1: 0.1, then 0.9·0.1 + 0.1; 0.9, 0.81.
        torch.testing.assert_close(norm.running_mean, torch.full((3,), 0.19))
        torch.testing.assert_close(norm.running_var, torch.full((3,), 0.81))
        assert int(norm.num_batches_tracked or 0) == 2
        # Normalised by the batch, whose mean therefore is 0.
        assert means == pytest.approx([0.0, 0.0], abs=1e-6)

    def test_restored_buffers_stand_for_the_pass(self) -> None:
        done, fresh = resnet(), resnet()
        first = resnet_sweep(done)
        trainer().run(first)
        buffers = {name: tensor.clone() for name, tensor in named_buffers(first.parts).items()}
        assert {name.rpartition(".")[2] for name in buffers} == {
            "running_mean",
            "running_var",
            "num_batches_tracked",
        }
        made, data = trainer(), labelled({0: 5})
        made.run(Sweep(name="herd", parts=frozen([fresh]), data=data, reducer=Collect()))
        made.restore_buffers(resnet_sweep(fresh), buffers)
        torch.testing.assert_close(state(fresh), state(done), rtol=0, atol=0)
        again = made.run(Sweep(name="herd", parts=frozen([fresh]), data=data, reducer=Collect()))
        straight = trainer().run(
            Sweep(name="x", parts=frozen([done]), data=data, reducer=Collect())
        )
        assert torch.equal(again, straight)

    def test_other_buffers_are_refused_and_nothing_is_written(self) -> None:
        backbone = resnet()
        before = state(backbone)
        buffers = named_buffers(resnet_sweep(backbone).parts)
        wrong = {name: torch.zeros(7) for name in buffers}
        for other in ({}, wrong, {**buffers, "more": torch.zeros(1)}):
            with pytest.raises(ValueError, match="sweep 'fisher' moves other buffers"):
                trainer().restore_buffers(resnet_sweep(backbone), other)
        torch.testing.assert_close(state(backbone), before, rtol=0, atol=0)


class TestFailures:
    def test_so_is_a_gradient(self) -> None:
        def steep(batch: Batch) -> dict[str, Loss]:
            # The square root is 0 with an infinite slope there.
            return {"root": Loss((batch["backbone.0"] - 2).mean().sqrt())}

        with pytest.raises(NonFiniteLossError, match="loss 'gradient' is not finite in '"):
            trainer().run(sweep(Scale(2.0), white([0, 0]), steep))


@final
class Forbidden:
    """A reducer that must not be used."""

    def update(self, gradients: Mapping[str, Tensor]) -> None:
        raise AssertionError

    def result(self) -> None:
        raise AssertionError


class TestJournal:
    def test_a_finished_pass_is_read_back_with_what_it_moved(self, tmp_path: Path) -> None:
        done, fresh = resnet(), resnet()
        squares = Journal(tmp_path).perform(1, resnet_sweep(done), trainer())
        made = trainer()
        again = Journal(tmp_path).perform(1, resnet_sweep(fresh, reducer=Forbidden()), made)
        torch.testing.assert_close(again, squares, rtol=0, atol=0)
        torch.testing.assert_close(state(fresh), state(done), rtol=0, atol=0)
        assert [(work.name, work.images) for work in made.work] == [("fisher", 19)]

    @pytest.mark.parametrize("fields", [{"batch_size": 9}, {"name": "other"}])
    def test_another_pass_is_done_anew(self, tmp_path: Path, fields: dict[str, Any]) -> None:
        Journal(tmp_path).perform(1, resnet_sweep(resnet()), trainer())
        fresh, straight = resnet(), resnet()
        found = Journal(tmp_path).perform(1, resnet_sweep(fresh, **fields), trainer())
        torch.testing.assert_close(
            found, trainer().run(resnet_sweep(straight, **fields)), rtol=0, atol=0
        )
        torch.testing.assert_close(state(fresh), state(straight), rtol=0, atol=0)

    @pytest.mark.parametrize("which", ["0", "moved.backbone.0.stem.1.running_mean"])
    def test_an_altered_one_is_done_anew(self, tmp_path: Path, which: str) -> None:
        squares = Journal(tmp_path).perform(1, resnet_sweep(resnet()), trainer())
        path = tmp_path / "0001.safetensors"
        kept, metadata = tensors.decode(path.read_bytes(), "journal")
        path.write_bytes(tensors.encode({**kept, which: kept[which] + 1}, metadata))
        fresh, straight = resnet(), resnet()
        trainer().run(resnet_sweep(straight))
        journal = Journal(tmp_path)
        torch.testing.assert_close(
            journal.perform(1, resnet_sweep(fresh), trainer()), squares, rtol=0, atol=0
        )
        torch.testing.assert_close(state(fresh), state(straight), rtol=0, atol=0)
        assert not journal.was_read

    def test_one_that_was_read_is_blamed(self, tmp_path: Path) -> None:
        Journal(tmp_path).perform(1, resnet_sweep(resnet()), trainer())
        journal = Journal(tmp_path)
        journal.perform(1, resnet_sweep(resnet()), trainer())
        with pytest.raises(DamagedError, match="begin anew"), journal.blamed():
            raise KeyError("backbone.0.stem.0.weight")
