"""Build the backbone that the settings name."""

from typing import cast

import torch

from grace.nn.backbone import Backbone
from grace.nn.weights import load_weights, weights_digest
from grace.settings.experiment import BackboneSettings
from grace.settings.registry import resolve


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
    build = resolve("backbone", settings.name)
    return cast("Backbone", build(settings, num_channels, seed, *purpose))
