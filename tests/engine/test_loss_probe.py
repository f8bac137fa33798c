"""The loss around one part's weights, in a graph of several parts."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace.base.randomness import generator
from grace.data.images import LabelledImages, TensorImages
from grace.engine.loss_meter import NonFiniteLossError
from grace.engine.loss_probe import loss_surface, measured
from grace.engine.phase import LossProbe, Part
from grace.engine.work import WorkDone
from grace.nn.capacity import LossSurface
from grace.settings.experiment import MeasureSettings

IMAGES = torch.rand(7, 3, 2, 2, generator=generator(1, "images"))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2, 0])


class Attention(nn.Module):
    """Attention among an image's pixels, by torch's fast kernel where it may."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(3, 12)

    def forward(self, images: Tensor) -> Tensor:
        q, k, v = self.project(images.flatten(2).mT)[:, None].chunk(3, dim=-1)
        return F.scaled_dot_product_attention(q, k, v).flatten(1)


class Counted(nn.Module):
    """Two features of an image; counts the rows it was run on."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def forward(self, images: Tensor) -> Tensor:
        self.rows += len(images)
        return images.flatten(1)[:, :2]


class Head(nn.Module):
    """A linear layer over the features of both."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(18, 3)

    def forward(self, *features: Tensor) -> Tensor:
        return self.linear(torch.cat(features, dim=1))


def probe(**settings: object) -> tuple[LossProbe, dict[str, nn.Module]]:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        modules = {"old": Counted(), "last": Attention(), "head": Head()}
    for module in modules.values():
        module.eval().requires_grad_(False)
    parts = {
        "old": Part(modules["old"], trains=False),
        "last": Part(modules["last"], trains=False),
        "head": Part(modules["head"], ["old", "last"], trains=False),
    }
    item = LossProbe(
        name="probe loss",
        parts=parts,
        probed="last",
        data=LabelledImages(TensorImages((255 * IMAGES).to(torch.uint8)), LABELS),
        settings=MeasureSettings.model_validate(settings),
    )
    return item, modules


def surface_of(item: LossProbe, modules: dict[str, nn.Module]) -> LossSurface:
    batches = [(IMAGES[:4], LABELS[:4]), (IMAGES[4:], LABELS[4:])]
    return loss_surface(item, modules, batches)


def test_it_is_the_cross_entropy_of_the_whole_network() -> None:
    item, modules = probe()
    surface = surface_of(item, modules)
    logits = modules["head"](modules["old"](IMAGES), modules["last"](IMAGES))
    nothing = torch.zeros(48)
    assert len(surface.point) == 3 * 12 + 12
    wanted = float(F.cross_entropy(logits, LABELS))
    assert surface.loss(nothing) == pytest.approx(wanted, rel=1e-6)
    assert surface.gradient(nothing)[0] == pytest.approx(wanted, rel=1e-6)


def test_gradient_and_curvature_are_those_of_the_loss() -> None:
    """By differences of the loss, in float64; attention has its second derivative."""
    item, modules = probe()
    for module in modules.values():
        module.double()
    batches = [(IMAGES.double(), LABELS)]
    surface = loss_surface(item, modules, batches)
    draws = generator(1, "direction")
    one, two = (torch.randn(48, generator=draws, dtype=torch.float64) for _ in range(2))
    step = 1e-4
    slope = (surface.loss(step * one) - surface.loss(-step * one)) / (2 * step)
    assert float(surface.gradient(0 * one)[1] @ one) == pytest.approx(slope, rel=1e-5)
    change = surface.gradient(step * one)[1] - surface.gradient(-step * one)[1]
    wanted = change / (2 * step)
    assert torch.allclose(surface.curvature(one), wanted, rtol=1e-4, atol=1e-9)
    assert float(two @ surface.curvature(one)) == pytest.approx(float(one @ surface.curvature(two)))


def test_so_many_images_are_drawn_without_repeats() -> None:
    item, modules = probe(measures=("weight_norm",), images=4)
    seen: list[LabelledImages] = []

    def batches(data: LabelledImages) -> list[tuple[Tensor, Tensor]]:
        seen.append(data)
        return [(data.images.gather(torch.arange(len(data))).float(), data.labels)]

    def draws(purpose: str) -> torch.Generator:
        return generator(1, purpose)

    for _ in range(2):
        measured(item, modules, batches, draws, None)
    rows = [data.images.gather(torch.arange(4)).flatten(1).tolist() for data in seen]
    assert rows[0] == rows[1]
    assert len({tuple(row) for row in rows[0]}) == 4
    few, modules = probe(measures=("weight_norm",), images=99)
    measured(few, modules, batches, draws, None)
    assert len(seen[-1]) == 7


def test_a_value_that_is_not_finite_is_refused_by_name() -> None:
    item, modules = probe(measures=("fisher",))
    next(modules["head"].parameters()).fill_(float("inf"))

    def batches(data: LabelledImages) -> list[tuple[Tensor, Tensor]]:
        return [(IMAGES, LABELS)]

    with pytest.raises(NonFiniteLossError, match="fisher is not finite in 'probe loss'"):
        measured(
            item, modules, batches, lambda purpose: generator(1, purpose), WorkDone("grow", 2, 6)
        )
