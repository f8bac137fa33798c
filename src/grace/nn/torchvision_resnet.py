"""ResNet-18/34/50 from torchvision, with the stems that the protocols need."""

from typing import Any, Literal, cast, final

from torch import Tensor, nn
from typing_extensions import override

from grace.base.randomness import seeded_globally
from grace.nn.backbone import Backbone, JoinedStage
from grace.settings.experiment import BackboneSettings

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
