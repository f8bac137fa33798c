"""Backbones that share a trunk: the cut changes nothing, and the trunk is computed once."""

import pytest
import torch
from torch import Tensor, nn

from grace.base.randomness import generator
from grace.nn.backbone import Backbone
from grace.nn.branching import Fork, split
from grace.nn.expandable import ExpandableNetwork, copy_of, folded
from grace.nn.heads import LinearHead
from grace.nn.resnets import CifarResNet, TorchvisionResNet


def resnet8(seed: int = 0) -> CifarResNet:
    return CifarResNet(8, 3, generator(seed, "test"))


def forked(num_branches: int, num_classes: int = 4) -> ExpandableNetwork:
    """A network of one trunk and so many different branches."""
    trunk, first = split(resnet8())
    branches = [first, *(split(resnet8(seed))[1] for seed in range(1, num_branches))]
    head = LinearHead(64 * num_branches, num_classes, generator(9, "head"))
    return ExpandableNetwork(branches, head, trunk)


def num_parameters(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def lived(module: nn.Module, images: Tensor) -> nn.Module:
    """Batch norm that folding would show: statistics of images, and scales that are not 1."""
    torch.manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, std=0.3)
    with torch.no_grad():
        module.train()(images)
    return module.eval()


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "timm/resnet10t"])
def test_cut_and_put_together_a_backbone_is_what_it_was(name: str) -> None:
    backbone: Backbone = resnet8()
    if name == "resnet18":
        backbone = TorchvisionResNet("resnet18", "conv3", 3, 0)
    elif name.startswith("timm/"):
        pytest.importorskip("timm", reason="the timm extra is not installed")
        from grace.nn.timm_backbone import TimmBackbone

        backbone = TimmBackbone("resnet10t", 3, 0)
    images = torch.randn(4, 3, 32, 32, generator=generator(1))
    lived(backbone, images)
    trunk, branch = split(backbone)
    fork = Fork(trunk, [branch]).eval()
    expected = backbone(images)
    assert branch.feature_dim == backbone.feature_dim == expected.shape[1]
    assert torch.equal(fork(images), expected)
    whole = folded(fork)
    torch.testing.assert_close(whole(images), expected, atol=1e-4, rtol=1e-4)
    if not name.startswith("timm/"):
        assert not any(isinstance(part, nn.BatchNorm2d) for part in whole.modules())


@pytest.mark.parametrize(
    ("backbone", "shared", "own"),
    [
        # docs/methods/memo.md.
        (CifarResNet(32, 3, generator(0, "test")), 112_016, 351_488),
        (TorchvisionResNet("resnet18", "conv7", 3, 0), 2_782_784, 8_393_728),
    ],
)
def test_parameters_of_trunk_and_branches(backbone: Backbone, shared: int, own: int) -> None:
    trunk, branch = split(backbone)
    assert num_parameters(trunk) == shared
    branches = [branch, *(copy_of(branch) for _ in range(4))]
    head = LinearHead(5 * branch.feature_dim, 10, generator(0, "head"))
    counts = ExpandableNetwork(branches, head, trunk).num_parameters()
    assert counts.backbones == shared + 5 * own
    assert counts.heads == 5 * branch.feature_dim * 10 + 10


@pytest.mark.parametrize("at", [1, 2, 3, -1, -2, -3])
def test_a_backbone_can_be_cut_before_any_stage(at: int) -> None:
    backbone = resnet8().eval()
    trunk, branch = split(backbone, at)
    images = torch.randn(2, 3, 32, 32, generator=generator(1))
    place = at % 4
    assert torch.equal(trunk(images), backbone.maps(images)[place - 1])
    assert torch.equal(branch(trunk(images)), backbone(images))
    assert branch.map_channels == (16, 16, 32, 64)[place:]
    assert len(branch.stages()) == 4 - place
    assert all(map(torch.equal, branch.maps(trunk(images)), backbone.maps(images)[place:]))
    assert num_parameters(trunk) + num_parameters(branch) == num_parameters(backbone)
    assert not trunk.training


@pytest.mark.parametrize("at", [0, 4, -4, -5])
def test_a_cut_without_stages_before_and_behind_it_is_refused(at: int) -> None:
    with pytest.raises(ValueError, match=f"'resnet8' cannot be cut before stage {at}"):
        split(resnet8(), at)
    with pytest.raises(ValueError, match="it has 1 stage"):
        split(split(resnet8())[1])


def test_features_stand_side_by_side_and_the_trunk_is_computed_once() -> None:
    network = forked(3).eval()
    assert network.trunk is not None
    images = torch.randn(5, 3, 8, 8, generator=generator(1))
    maps = network.trunk(images)
    expected = torch.cat([branch(maps) for branch in network.backbones], dim=1)
    calls: list[int] = []
    network.trunk.register_forward_hook(lambda *_: calls.append(1))
    assert torch.equal(network.features(images), expected)
    assert len(calls) == 1
    torch.testing.assert_close(network(images), expected @ network.head.weight.T)
    assert len(network.extractors) == 1


def test_every_tensor_stands_in_one_part() -> None:
    network = forked(2)
    parts = network.parts()
    assert list(parts) == ["trunk", "backbone.0", "backbone.1", "head"]
    storages = [tensor.data_ptr() for part in parts.values() for tensor in part.values()]
    assert len(set(storages)) == len(storages)
    assert sorted(storages) == sorted(t.data_ptr() for t in network.state_dict().values())
