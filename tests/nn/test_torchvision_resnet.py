import pytest
import torch
from torch import nn

from grace.nn.resnets import TorchvisionResNet


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def test_resnet18_has_the_published_parameter_counts() -> None:
    # docs/protocols.md#resnet-18 and docs/methods/memo.md.
    assert count(TorchvisionResNet("resnet18", "conv7", 3, 0)) == 11_176_512
    small = TorchvisionResNet("resnet18", "conv3", 3, 0)
    assert count(small) == 11_168_832
    assert small.feature_dim == 512


def test_outputs_are_torchvisions_own_before_the_classifier() -> None:
    from torchvision.models import resnet18

    ours = TorchvisionResNet("resnet18", "conv7", 3, 0).eval()
    theirs = resnet18(weights=None).eval()
    weights = {name.removeprefix("body."): value for name, value in ours.state_dict().items()}
    missing = theirs.load_state_dict(weights, strict=False)
    assert set(missing.missing_keys) == {"fc.weight", "fc.bias"}
    assert missing.unexpected_keys == []
    images = torch.randn(2, 3, 48, 48)
    features = ours(images)
    expected = features @ theirs.fc.weight.T + theirs.fc.bias
    torch.testing.assert_close(theirs(images), expected)


@pytest.mark.parametrize(
    ("stem", "kernel", "side"), [("conv7", 7, 8), ("conv3", 3, 16), ("cifar", 3, 32)]
)
def test_stems(stem: str, kernel: int, side: int) -> None:
    # By hand at 32 px: stride 2 and pooling give 8, pooling alone 16, neither 32.
    network = TorchvisionResNet("resnet18", stem, 1, 0)  # type: ignore[arg-type]
    assert network.body.conv1.weight.shape == (64, 1, kernel, kernel)
    body = network.body
    maps = body.maxpool(body.relu(body.bn1(body.conv1(torch.randn(2, 1, 32, 32)))))
    assert maps.shape == (2, 64, side, side)
    # Kaiming-normal, fan-out, which here is kernel²·64.
    std = (2 / (kernel**2 * 64)) ** 0.5
    assert float(body.conv1.weight.detach().std()) == pytest.approx(std, rel=0.15)


@pytest.mark.parametrize(
    ("name", "stem", "widths", "sides"),
    [
        # He et al. 2016, table 1, with 64 pixels in place of 224.
        ("resnet18", "conv7", (64, 64, 128, 256, 512), (16, 16, 8, 4, 2)),
        ("resnet18", "cifar", (64, 64, 128, 256, 512), (64, 64, 32, 16, 8)),
        ("resnet50", "conv7", (64, 256, 512, 1024, 2048), (16, 16, 8, 4, 2)),
    ],
)
def test_maps_have_the_published_sizes(
    name: str, stem: str, widths: tuple[int, ...], sides: tuple[int, ...]
) -> None:
    network = TorchvisionResNet(name, stem, 3, 0).eval()  # type: ignore[arg-type]
    with torch.no_grad():
        images = torch.randn(1, 3, 64, 64)
        maps, features = network.maps(images), network(images)
    assert [tuple(each.shape[1:]) for each in maps] == [
        (width, side, side) for width, side in zip(widths, sides, strict=True)
    ]
    assert network.map_channels == widths
    assert network.feature_dim == widths[-1]
    torch.testing.assert_close(features, maps[-1].mean(dim=(2, 3)))
    assert float(features.min()) >= 0.0  # ReLU, then a mean
