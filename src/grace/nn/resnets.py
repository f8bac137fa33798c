"""ResNets: for small images (He et al. 2016, section 4.2), and torchvision's with other stems.

Shapes: B images, C channels, H×W pixels, d features (64 for small images).
"""

from typing import Any, Literal, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from grace.base.errors import GraceError
from grace.base.randomness import generator, seeded_globally
from grace.nn.backbone import Backbone, JoinedStage
from grace.settings.experiment import BackboneSettings


def _conv3x3(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(
        in_channels, out_channels, 3, stride=stride, padding=1, bias=False, device="meta"
    )
    # By way of the meta device, because torch's own initialisation, which would be replaced
    # anyhow, draws from the global generator. Not by ``to_empty``, for which torch imports sympy:
    # that takes longer than to predict an image.
    conv.weight = nn.Parameter(torch.empty(conv.weight.shape))
    return conv


@final
class BasicBlock(nn.Module):
    """Two 3×3 convolutions with a parameter-free shortcut (option A).

    ``relu(bn(conv(relu(bn(conv(x))))) + shortcut(x))``, where the shortcut is x itself or, when the
    block changes shape, every ``stride``-th pixel of x with zero channels behind the real ones
    (docs/protocols.md#resnet-32).

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output, at least ``in_channels``.
        stride: pixels between neighbouring outputs, 1 or 2.
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = _conv3x3(in_channels, out_channels, stride)
        self.bn1 = nn.BatchNorm2d(out_channels)
        self.conv2 = _conv3x3(out_channels, out_channels)
        self.bn2 = nn.BatchNorm2d(out_channels)
        self.relu = nn.ReLU(inplace=True)
        self.stride = stride
        self.num_zero_channels = out_channels - in_channels

    def shortcut(self, inputs: Tensor) -> Tensor:
        """Map inputs (B, C_in, H, W) to the output's shape without parameters."""
        if self.stride > 1:
            inputs = inputs[:, :, :: self.stride, :: self.stride]
        if self.num_zero_channels > 0:
            inputs = F.pad(inputs, (0, 0, 0, 0, 0, self.num_zero_channels))
        return inputs

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        """Map (B, C_in, H, W) to (B, C_out, ⌈H/stride⌉, ⌈W/stride⌉)."""
        outputs: Tensor = self.relu(self.bn1(self.conv1(inputs)))
        outputs = self.bn2(self.conv2(outputs))
        # In place is safe: batch norm's backward needs its input, never this output.
        outputs += self.shortcut(inputs)
        return cast("Tensor", self.relu(outputs))


@final
class CifarResNet(Backbone):
    """ResNet-20/32/44/56 for small images: three stages of 16, 32 and 64 channels.

    A 3×3 stem and (depth − 2)/6 basic blocks per stage, strides 1/2/2, option-A shortcuts, the
    last ReLU kept, then global average pooling to 64 non-negative features. Convolutions start at
    N(0, sqrt(2/(k²·C_out))), batch norm at weight 1 and bias 0. Any image of 8 pixels or more
    works. ResNet-32 on colour images has 463,504 parameters (docs/protocols.md#resnet-32).

    Args:
        depth: 6n + 2 layers, e.g. 32. More layers: more parameters, slower training.
        num_channels: channels of the images.
        generator: CPU generator that draws the weights.

    Raises:
        GraceError: if ``depth`` is not 6n + 2.
    """

    def __init__(self, depth: int, num_channels: int, generator: torch.Generator) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise GraceError(
                f"a CIFAR ResNet has 6n + 2 layers, got depth {depth}", "choose 20, 32, 44 or 56"
            )
        blocks = (depth - 2) // 6
        self.name = f"resnet{depth}"
        self.feature_dim = 64
        self.map_channels = (16, 16, 32, 64)
        self.stem = nn.Sequential(
            _conv3x3(num_channels, 16), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
        )
        self.stage1 = _stage(blocks, 16, 16, stride=1)
        self.stage2 = _stage(blocks, 16, 32, stride=2)
        self.stage3 = _stage(blocks, 32, 64, stride=2)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        _draw_weights(self, generator)

    @override
    def stages(self) -> tuple[nn.Module, ...]:
        """Return the stem and the three stages."""
        return self.stem, self.stage1, self.stage2, self.stage3

    @override
    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """Map images (B, C, H, W) to the outputs of stem and stages, each at least 0."""
        stem = self.stem(images)
        first = self.stage1(stem)
        second = self.stage2(first)
        return stem, first, second, self.stage3(second)


def _stage(num_blocks: int, in_channels: int, out_channels: int, stride: int) -> nn.Sequential:
    blocks = [BasicBlock(in_channels, out_channels, stride)]
    blocks += [BasicBlock(out_channels, out_channels) for _ in range(num_blocks - 1)]
    return nn.Sequential(*blocks)


@torch.no_grad()
def _draw_weights(module: nn.Module, generator: torch.Generator) -> None:
    for conv in module.modules():
        if isinstance(conv, nn.Conv2d) and not conv.weight.is_meta:
            fan_out = conv.kernel_size[0] * conv.kernel_size[1] * conv.out_channels
            conv.weight.normal_(0.0, (2.0 / fan_out) ** 0.5, generator=generator)


def build_cifar_resnet(
    settings: BackboneSettings, num_channels: int, seed: int, *purpose: str | int
) -> Backbone:
    """Build the CIFAR ResNet that the settings name.

    Args:
        settings: ``name`` is ``resnet`` and the number of layers.
        num_channels: channels C of the images.
        seed: seed of the initialisation.
        purpose: words and counters that seed this draw too.
    """
    depth = int(settings.name.removeprefix("resnet"))
    return CifarResNet(depth, num_channels, generator(seed, *purpose))


TORCHVISION_RESNETS = ("resnet18", "resnet34", "resnet50")


@final
class TorchvisionResNet(Backbone):
    """A torchvision ResNet without its classifier.

    Stems: ``conv7`` is 7×7 stride 2 with max-pooling, ``conv3`` is 3×3 stride 1 with max-pooling,
    ``cifar`` is 3×3 stride 1 without pooling. ResNet-18 has 11,176,512 parameters with conv7 and
    11,168,832 with conv3 (docs/protocols.md#resnet-18). Weights start as torchvision's do:
    Kaiming-normal, fan-out.

    Args:
        name: resnet18, resnet34 or resnet50.
        stem: one of the three stems. Less stride or pooling: larger maps, slower training.
        num_channels: channels C of the images.
        seed: seed of the initialisation.
        purpose: words and counters that seed this draw too (``grace.base.randomness``).
    """

    def __init__(
        self,
        name: Literal["resnet18", "resnet34", "resnet50"],
        stem: Literal["conv7", "conv3", "cifar"],
        num_channels: int,
        seed: int,
        *purpose: str | int,
    ) -> None:
        super().__init__()
        self.name = name
        # Late, because importing torchvision takes seconds.
        from torchvision.models import get_model

        with seeded_globally(seed, *purpose):
            self.body: Any = get_model(name, weights=None)
            if stem != "conv7" or num_channels != 3:
                self.body.conv1 = _stem_conv(stem, num_channels)
        if stem == "cifar":
            self.body.maxpool = nn.Identity()
        self.feature_dim = width = int(self.body.fc.in_features)
        self.map_channels = (64, width // 8, width // 4, width // 2, width)
        self.body.fc = nn.Identity()
        self.pool = nn.Sequential(self.body.avgpool, nn.Flatten())

    @override
    def stages(self) -> tuple[nn.Module, ...]:
        """Return the stem and the four layers."""
        body = self.body
        stem = JoinedStage(body.conv1, body.bn1, body.relu, body.maxpool)
        return stem, body.layer1, body.layer2, body.layer3, body.layer4

    @override
    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """Map images (B, C, H, W) to the outputs of stem and layers."""
        body = self.body
        stem = body.maxpool(body.relu(body.bn1(body.conv1(images))))
        first = body.layer1(stem)
        second = body.layer2(first)
        third = body.layer3(second)
        return stem, first, second, third, body.layer4(third)


def _stem_conv(stem: str, num_channels: int) -> nn.Conv2d:
    size, stride = (7, 2) if stem == "conv7" else (3, 1)
    conv = nn.Conv2d(num_channels, 64, size, stride=stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def build_torchvision_resnet(
    settings: BackboneSettings, num_channels: int, seed: int, *purpose: str | int
) -> Backbone:
    """Build the torchvision ResNet that the settings name.

    Args:
        settings: name and stem.
        num_channels: channels C of the images.
        seed: seed of the initialisation.
        purpose: words and counters that seed this draw too.
    """
    name = cast("Literal['resnet18', 'resnet34', 'resnet50']", settings.name)
    return TorchvisionResNet(name, settings.stem, num_channels, seed, *purpose)
