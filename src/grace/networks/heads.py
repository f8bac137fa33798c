"""Linear heads: their initialisation, growth and alignment.

Shapes: B images, D concatenated features, K classes.
"""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override


@final
class LinearHead(nn.Module):
    """Affine map from features to class logits, ``W x + b``.

    Weights start at U(−sqrt(3/D), +sqrt(3/D)) (Kaiming-uniform, gain 1, fan-in), biases at 0
    (spec §1.5).

    Args:
        in_features: width D of the features.
        num_classes: number of logits K.
        generator: CPU generator that draws the weights.
    """

    def __init__(self, in_features: int, num_classes: int, generator: torch.Generator) -> None:
        super().__init__()
        bound = (3.0 / in_features) ** 0.5
        weight = torch.empty(num_classes, in_features)
        self.weight = nn.Parameter(weight.uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.zeros(num_classes))

    @property
    def in_features(self) -> int:
        """Width D of the features it reads."""
        return self.weight.shape[1]

    @property
    def num_classes(self) -> int:
        """Number of logits K."""
        return self.weight.shape[0]

    @override
    def forward(self, features: Tensor) -> Tensor:
        """Map features (B, D) to logits (B, K)."""
        return F.linear(features, self.weight, self.bias)


def grown(
    head: LinearHead, in_features: int, num_classes: int, generator: torch.Generator
) -> LinearHead:
    """Make a larger head that keeps the old one's block and biases exactly (spec §1.5).

    New rows, and the new columns of old rows, are fresh draws whose fan-in is the total width.

    Args:
        head: the old head, (K_old, D_old); left as it is.
        in_features: total width D, at least D_old.
        num_classes: number of logits K, at least K_old.
        generator: CPU generator that draws the fresh weights.

    Returns:
        A trainable head (K, D) on the old head's device.
    """
    assert in_features >= head.in_features
    assert num_classes >= head.num_classes
    larger = LinearHead(in_features, num_classes, generator).to(head.weight)
    with torch.no_grad():
        larger.weight[: head.num_classes, : head.in_features] = head.weight
        larger.bias[: head.num_classes] = head.bias
    return larger


@torch.no_grad()
def align_weights(head: LinearHead, num_new: int) -> float:
    """Scale the newest rows, in place, to the mean length of the old rows.

    ``γ = mean_old ‖w‖₂ / mean_new ‖w‖₂``; the last ``num_new`` rows become ``γ·w``. Biases stay, γ
    may exceed 1, and a second call finds γ = 1. Without new or without old rows nothing happens.

    Args:
        head: the head to align.
        num_new: number of newest classes, the last rows.

    Returns:
        γ, or 1 where nothing happens.

    Raises:
        ValueError: if all new rows are zero, so that no factor can align them.

    Source: spec §1.8.
    """
    assert 0 <= num_new <= head.num_classes
    num_old = head.num_classes - num_new
    if num_new == 0 or num_old == 0:
        return 1.0
    lengths = head.weight.double().norm(dim=1)
    old, new = float(lengths[:num_old].mean()), float(lengths[num_old:].mean())
    if new == 0.0:
        raise ValueError(
            f"weight alignment: all {num_new} new rows of the head are zero: lower the weight decay"
        )
    gamma = old / new
    head.weight[num_old:] *= gamma
    return gamma
