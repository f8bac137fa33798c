"""From the settings of a backbone to the backbone."""

from difflib import get_close_matches
from typing import Literal, cast

from grace.configs.experiment import BackboneSettings
from grace.networks.backbone import Backbone
from grace.networks.cifar_resnet import CifarResNet
from grace.networks.timm_backbone import TimmBackbone
from grace.networks.torchvision_resnet import TorchvisionResNet
from grace.randomness import generator


def build_backbone(
    settings: BackboneSettings, num_channels: int, seed: int, *purpose: str | int
) -> Backbone:
    """Build a freshly initialised backbone on the CPU.

    Args:
        settings: name and stem.
        num_channels: channels C of the images.
        seed: seed of the initialisation.
        purpose: words and counters that set this draw apart, e.g. ``"backbone", task``.

    Returns:
        A backbone in train mode; equal arguments give equal weights.

    Raises:
        ValueError: if no backbone has that name, or its library is not installed.
    """
    name = settings.name
    cifar_depths = {"resnet20": 20, "resnet32": 32, "resnet44": 44, "resnet56": 56}
    from_torchvision = ("resnet18", "resnet34", "resnet50")
    if name in cifar_depths:
        return CifarResNet(cifar_depths[name], num_channels, generator(seed, *purpose))
    if name in from_torchvision:
        model = cast("Literal['resnet18', 'resnet34', 'resnet50']", name)
        return TorchvisionResNet(model, settings.stem, num_channels, seed, *purpose)
    if name.startswith("timm/"):
        return TimmBackbone(name.removeprefix("timm/"), num_channels, seed, *purpose)
    known = [*cifar_depths, *from_torchvision]
    near = get_close_matches(name, known, n=1, cutoff=0.0)[0]
    raise ValueError(
        f"no backbone is named '{name}': did you mean '{near}'? "
        f"Known are {', '.join(known)} and timm/<model>"
    )
