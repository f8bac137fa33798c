from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from grace.base.randomness import generator
from grace.nn.backbone import Backbone, WithMaps
from grace.nn.expandable import folded
from grace.nn.resnets import CifarResNet, TorchvisionResNet
from grace.nn.timm_backbone import TimmBackbone


def timm_resnet() -> Backbone:
    pytest.importorskip("timm", reason="the timm extra is not installed")
    return TimmBackbone("resnet10t", 3, 0)


def num_batch_norms(module: nn.Module) -> int:
    return sum(isinstance(part, nn.BatchNorm2d) for part in module.modules())


def with_lived_statistics(module: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, std=0.3)
    module.train()
    with torch.no_grad():
        for _ in range(4):
            module(torch.randn(8, 3, 16, 16))
    return module.eval()


@pytest.mark.parametrize(
    "build",
    [
        lambda: CifarResNet(20, 3, generator(0, "test")),
        lambda: TorchvisionResNet("resnet18", "conv3", 3, 0),
        lambda: TorchvisionResNet("resnet50", "cifar", 3, 0),
        timm_resnet,
    ],
    ids=["cifar", "resnet18", "resnet50", "timm"],
)
def test_folding_removes_batch_norms_and_keeps_the_outputs(build: Callable[[], nn.Module]) -> None:
    module = with_lived_statistics(build())
    before = {name: value.clone() for name, value in module.state_dict().items()}
    inference = folded(module)
    images = torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        features = module(images)
        # 1e-5 of the features' size: float32 rounding through tens of layers
        tolerance = 1e-5 * max(1.0, float(features.abs().max()))
        torch.testing.assert_close(inference(images), features, rtol=0, atol=tolerance)
    assert num_batch_norms(module) > 0
    assert num_batch_norms(inference) == 0
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


@pytest.mark.parametrize(
    "build",
    [
        lambda: CifarResNet(20, 3, generator(0, "test")),
        lambda: TorchvisionResNet("resnet18", "conv3", 3, 0),
        timm_resnet,
    ],
    ids=["cifar", "resnet18", "timm"],
)
def test_features_and_last_map_of_one_pass_are_folded(build: Callable[[], Backbone]) -> None:
    backbone = build()
    with_lived_statistics(backbone)
    module = WithMaps(backbone)
    assert list(module.state_dict()) == [f"backbone.{name}" for name in backbone.state_dict()]
    inference = folded(module)
    assert num_batch_norms(inference) == 0
    images = torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        features, last_map = inference(images)
        for found, expected in (
            (features, backbone(images)),
            (last_map, backbone.maps(images)[-1]),
        ):
            tolerance = 1e-5 * max(1.0, float(expected.abs().max()))
            torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


def test_copy_is_frozen_in_eval_mode_and_independent() -> None:
    module = CifarResNet(8, 3, generator(0, "test")).train()
    inference = folded(module)
    assert module.training
    assert all(parameter.requires_grad for parameter in module.parameters())
    assert not any(part.training for part in inference.modules())
    assert not any(parameter.requires_grad for parameter in inference.parameters())
    images = torch.randn(2, 3, 8, 8)
    before = inference(images)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert torch.equal(inference(images), before)


class Branching(nn.Module):
    """Cannot be traced: it looks at the values."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.norm(images)
        return maps if float(maps.detach().sum()) > 0 else -maps


class Shared(nn.Module):
    """One convolution called twice, once before batch norm and once bare."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.norm = nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.norm(self.conv(images))
        bare: Tensor = self.conv(maps)
        return bare


class TwoNames(nn.Module):
    """One convolution known by two names, called by the one that tracing does not report."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.alias = self.conv
        self.norm = nn.BatchNorm2d(3)

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.norm(self.alias(images))
        return maps


@pytest.mark.parametrize("kind", [Branching, Shared, TwoNames])
def test_what_cannot_be_folded_is_copied(kind: type[nn.Module]) -> None:
    module = with_lived_statistics(kind())
    inference = folded(module)
    images = torch.randn(2, 3, 4, 4)
    assert torch.equal(inference(images), module(images))
    assert num_batch_norms(inference) == 1
    assert not any(parameter.requires_grad for parameter in inference.parameters())
