import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from grace.base.randomness import generator
from grace.nn.resnets import BasicBlock, CifarResNet


def resnet(depth: int = 32, num_channels: int = 3, seed: int = 0) -> CifarResNet:
    return CifarResNet(depth, num_channels, generator(seed, "test"))


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_resnet32_has_the_published_parameter_counts() -> None:
    # docs/protocols.md#resnet-32: 463,504 = stem 432 + 32, stages 23,360, 88,192, 351,488.
    network = resnet()
    assert count(network) == 463_504
    assert [count(layer) for layer in network.stem] == [432, 32, 0]
    stages = (network.stage1, network.stage2, network.stage3)
    assert [count(stage) for stage in stages] == [23_360, 88_192, 351_488]


@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85)])
def test_depths_have_the_sizes_of_the_resnet_paper(depth: int, millions: float) -> None:
    # He et al. 2016, table 6; the paper counts a 64 -> 10 classifier of 650 parameters too.
    assert round((count(resnet(depth)) + 650) / 1e6, 2) == millions


def test_shortcut_subsamples_and_appends_zero_channels() -> None:
    pixels = torch.arange(25.0).reshape(1, 1, 5, 5)
    # By hand: rows and columns 0, 2, 4 of a 5x5 ramp, then one channel of zeros.
    expected = torch.tensor([[0.0, 2, 4], [10, 12, 14], [20, 22, 24]])
    shortcut = BasicBlock(1, 2, stride=2).shortcut(pixels)
    assert torch.equal(shortcut[0, 0], expected)
    assert torch.equal(shortcut[0, 1], torch.zeros(3, 3))


def plain_forward(network: CifarResNet, images: Tensor) -> Tensor:
    """Compute docs/protocols.md#resnet-32 with functions of the weights, not modules."""

    def norm(maps: Tensor, bn: nn.BatchNorm2d) -> Tensor:
        mean = maps.mean(dim=(0, 2, 3), keepdim=True)
        variance = maps.var(dim=(0, 2, 3), keepdim=True, unbiased=False)
        unit = (maps - mean) / torch.sqrt(variance + 1e-5)
        return unit * bn.weight[:, None, None] + bn.bias[:, None, None]

    weights = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    maps = norm(F.conv2d(images, weights[0].weight, padding=1), norms[0]).clamp(min=0)
    for first in range(1, len(weights), 2):
        stride = 2 if weights[first].in_channels < weights[first].out_channels else 1
        inner = F.conv2d(maps, weights[first].weight, stride=stride, padding=1)
        inner = norm(inner, norms[first]).clamp(min=0)
        inner = norm(F.conv2d(inner, weights[first + 1].weight, padding=1), norms[first + 1])
        short = F.avg_pool2d(maps, 1, stride)
        zeros = torch.zeros(len(inner), inner.shape[1] - short.shape[1], *inner.shape[2:])
        maps = (inner + torch.cat([short, zeros.to(inner)], dim=1)).clamp(min=0)
    return maps.mean(dim=(2, 3))


def test_training_forward_is_the_formula_of_the_spec() -> None:
    network = resnet(20).double()
    images = torch.randn(3, 3, 12, 12, dtype=torch.float64)
    torch.testing.assert_close(network.train()(images), plain_forward(network, images))


def test_in_place_steps_leave_gradients_right() -> None:
    network = resnet(8).double().train()
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    ours = torch.autograd.grad(network(images).square().sum(), list(network.parameters()))
    plain = torch.autograd.grad(
        plain_forward(network, images).square().sum(), list(network.parameters())
    )
    torch.testing.assert_close(ours, plain)


def test_weights_start_at_the_spread_of_the_spec() -> None:
    # N(0, sqrt(2/(9·64))): std 0.0589 over 36,864 draws, standard error 0.0589/sqrt(2·36,864).
    weight = dict(resnet().named_parameters())["stage3.2.conv1.weight"].detach()
    std = math.sqrt(2 / (9 * 64))
    assert weight.numel() == 36_864
    assert float(weight.std()) == pytest.approx(std, abs=5 * std / math.sqrt(2 * 36_864))
    assert float(weight.mean()) == pytest.approx(0, abs=5 * std / math.sqrt(36_864))
    assert float(weight.abs().max()) > 3 * std  # normal, not uniform


@pytest.mark.parametrize("depth", [2, 18, 33])
def test_impossible_depth_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match=f"got depth {depth}"):
        resnet(depth)


def test_maps_have_the_sizes_of_the_resnet_paper() -> None:
    # He et al. 2016, section 4.2: 16, 32 and 64 filters on maps of 32, 16 and 8 pixels; the stem
    # has 16 filters on 32.
    network = resnet().eval()
    images = torch.randn(2, 3, 32, 32)
    maps = network.maps(images)
    sizes = [(16, 32, 32), (16, 32, 32), (32, 16, 16), (64, 8, 8)]
    assert [tuple(each.shape[1:]) for each in maps] == sizes
    assert network.map_channels == (16, 16, 32, 64)
    torch.testing.assert_close(network(images), maps[-1].mean(dim=(2, 3)))
    assert torch.equal(network.pool(maps[-1]), network(images))
    reached = images
    for stage, own in zip(network.stages(), maps, strict=True):
        reached = stage(reached)
        assert torch.equal(reached, own)
