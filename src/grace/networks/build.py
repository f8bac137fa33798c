"""Build the backbone that the settings name."""

from difflib import get_close_matches
from typing import Literal, cast

import torch

from grace.configs.experiment import BackboneSettings
from grace.networks.backbone import Backbone
from grace.networks.cifar_resnet import CifarResNet
from grace.networks.timm_backbone import TimmBackbone
from grace.networks.torchvision_resnet import TorchvisionResNet
from grace.networks.weights import load_weights, weights_digest
from grace.randomness import generator
from grace.text.refusals import GraceError


def build_backbone(
    settings: BackboneSettings, num_channels: int, seed: int, *purpose: str | int
) -> Backbone:
    """Build a backbone on the CPU, freshly initialised or with given weights.

    Args:
        settings: name, stem and weights. Pass ``without_weights(settings)`` to read no file, if
            all numbers are overwritten or only shapes matter.
        num_channels: channels C of the images.
        seed: seed of the initialisation; without effect if weights are given.
        purpose: words and counters that seed this draw too, e.g. ``"backbone", task``.

    Returns:
        A backbone in train mode; equal arguments give equal weights.

    Raises:
        GraceError: if no backbone has that name, its library is not installed, or its weights
            cannot be read or are another model's.
    """
    backbone = _freshly_drawn(settings, num_channels, seed, *purpose)
    if settings.weights != "none":
        load_weights(backbone, settings)
    return backbone


def without_weights(settings: BackboneSettings) -> BackboneSettings:
    """Return the settings of the same backbone, freshly initialised."""
    return settings.model_copy(update={"weights": "none"})


def digest_of_weights(settings: BackboneSettings) -> str:
    """Compute the SHA-256 of the weights that these settings name.

    Args:
        settings: with ``weights`` other than ``none``.

    Raises:
        GraceError: as ``build_backbone``.
    """
    # Only the names are needed, which do not depend on the number of channels.
    with torch.device("meta"):
        sketch = _freshly_drawn(without_weights(settings), 3, 0, "sketch")
    return weights_digest(sketch, settings)


def _freshly_drawn(
    settings: BackboneSettings, num_channels: int, seed: int, *purpose: str | int
) -> Backbone:
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
    raise GraceError(
        f"no backbone is named '{name}': did you mean '{near}'? "
        f"Known are {', '.join(known)} and timm/<model>"
    )
