"""Linear heads: their initialisation, growth, masking and alignment.

Shapes: B images, D concatenated features, K classes.
"""

from collections.abc import Iterable
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

MASKED = -1e4
"""Logit of a forgotten class: its softmax is exactly 0 in every precision."""


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
        self.masked: tuple[int, ...] = ()
        """Classes that were forgotten: their logits are ``MASKED``, so no loss and no prediction
        knows them."""
        self._hidden: Tensor
        self.register_buffer("_hidden", torch.zeros(num_classes, dtype=torch.bool), False)

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
        logits = F.linear(features, self.weight, self.bias)
        return logits.masked_fill(self._hidden, MASKED) if self.masked else logits

    def mask(self, classes: Iterable[int]) -> None:
        """Hide these class indices and no others."""
        self.masked = tuple(sorted(classes))
        self._hidden.zero_()
        self._hidden[list(self.masked)] = True


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
    larger.mask(head.masked)
    with torch.no_grad():
        larger.weight[: head.num_classes, : head.in_features] = head.weight
        larger.bias[: head.num_classes] = head.bias
    return larger


@torch.no_grad()
def align_weights(head: LinearHead, num_new: int) -> float:
    """Scale the newest rows, in place, to the mean length of the old rows.

    ``γ = mean_old ‖w‖₂ / mean_new ‖w‖₂``; the last ``num_new`` rows become ``γ·w``. Biases stay, γ
    may exceed 1, and a second call finds γ = 1. Masked rows do not count. Without new or without
    old rows nothing happens.

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
    live = [index for index in range(num_old) if index not in head.masked]
    if not live:
        return 1.0
    old, new = float(lengths[live].mean()), float(lengths[num_old:].mean())
    if new == 0.0:
        raise ValueError(
            f"weight alignment: all {num_new} new rows of the head are zero: lower the weight decay"
        )
    gamma = old / new
    head.weight[num_old:] *= gamma
    return gamma
