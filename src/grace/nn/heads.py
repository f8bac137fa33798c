"""Heads: they map features to scores. Initialisation, growth, masking, alignment.

Shapes: B images, D concatenated features, K classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Self, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from grace.base.errors import GraceError

MASKED = -1e4
"""Logit of a forgotten class: its softmax is exactly 0 in every precision."""


class Head(nn.Module, ABC):
    """Maps concatenated features to one score per class; forgotten classes are masked.

    Args:
        num_classes: number of scores K.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.masked: tuple[int, ...] = ()
        """Forgotten classes: their logits are ``MASKED``, so that losses and predictions ignore
        them."""
        self._hidden: Tensor
        self.register_buffer("_hidden", torch.zeros(num_classes, dtype=torch.bool), False)

    @property
    @abstractmethod
    def in_features(self) -> int:
        """Width D of its input."""

    @abstractmethod
    def score(self, features: Tensor) -> Tensor:
        """Map features (B, D) to scores (B, K) of all classes."""

    @abstractmethod
    def fresh(self, in_features: int, num_classes: int, generator: torch.Generator) -> Self:
        """Make a head of the same kind whose weights are draws of ``generator``."""

    @final
    def grown(self, in_features: int, num_classes: int, generator: torch.Generator) -> Self:
        """Make a larger head that keeps this one's weights exactly; this one does not change.

        New rows, and the new columns of old rows, are fresh draws whose fan-in is the total width.

        Args:
            in_features: total width D, at least this one's.
            num_classes: number of scores K, at least this one's.
            generator: CPU generator that draws the fresh weights.

        Returns:
            A trainable head on this one's device.
        """
        assert in_features >= self.in_features
        assert num_classes >= self.num_classes
        larger, parameters = self.fresh(in_features, num_classes, generator), self.parameters()
        larger.to(next(self.parameters()))
        larger.mask(self.masked)
        with torch.no_grad():
            for new, old in zip(larger.parameters(), parameters, strict=True):
                new[tuple(slice(count) for count in old.shape)] = old
        return larger

    @override
    def forward(self, *features: Tensor) -> Tensor:
        """Map features (B, d) of one or more backbones to scores (B, K)."""
        joined = features[0] if len(features) == 1 else torch.cat(features, dim=1)
        kind = joined.device.type
        if torch.is_autocast_enabled(kind):
            # Eight bits of a logit near 10 are steps of 1/16: scores stay float32.
            with torch.autocast(kind, enabled=False):
                scores = self.score(joined.float())
        else:
            scores = self.score(joined)
        return scores.masked_fill(self._hidden, MASKED) if self.masked else scores

    @final
    def mask(self, classes: Iterable[int]) -> None:
        """Hide these class indices and no others."""
        self.masked = tuple(sorted(classes))
        self._hidden.zero_()
        self._hidden[list(self.masked)] = True


@final
class LinearHead(Head):
    """Affine map from features to class logits, ``W x + b``.

    Weights start at U(−sqrt(3/D), +sqrt(3/D)) (Kaiming-uniform, gain 1, fan-in), biases at 0.

    Args:
        in_features: width D of the features.
        num_classes: number of logits K.
        generator: CPU generator that draws the weights; ``None`` leaves them undrawn.
    """

    def __init__(
        self, in_features: int, num_classes: int, generator: torch.Generator | None
    ) -> None:
        super().__init__(num_classes)
        bound = (3.0 / in_features) ** 0.5
        weight = torch.empty(num_classes, in_features)
        if generator is not None:
            weight.uniform_(-bound, bound, generator=generator)
        self.weight = nn.Parameter(weight)
        self.bias = nn.Parameter(torch.zeros(num_classes))

    @property
    @override
    def in_features(self) -> int:
        return self.weight.shape[1]

    @override
    def score(self, features: Tensor) -> Tensor:
        return F.linear(features, self.weight, self.bias)

    @override
    def fresh(self, in_features: int, num_classes: int, generator: torch.Generator) -> Self:
        return type(self)(in_features, num_classes, generator)


@torch.no_grad()
def align_weights(head: Head, num_new: int) -> float:
    """Weight alignment: scale the newest rows, in place, to the mean length of the old rows.

    ``γ = mean_old ‖w‖₂ / mean_new ‖w‖₂``; the last ``num_new`` rows become ``γ·w``. Biases do not
    change, γ may exceed 1, and a second call changes nothing. Masked rows do not count. Without new
    or without old rows nothing happens (docs/protocols.md#weight-alignment).

    Args:
        head: a linear head.
        num_new: number of newest classes, the last rows.

    Returns:
        γ, or 1 where nothing happens.

    Raises:
        GraceError: if all new rows are zero, so that no factor can align them.

    Source: Zhao et al., "Maintaining Discrimination and Fairness in Class Incremental Learning"
    (CVPR 2020), Eq. 8.
    """
    assert isinstance(head, LinearHead), "only rows of weights have a length"
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
        raise GraceError(
            f"weight alignment: all {num_new} new rows of the head are zero",
            "lower the weight decay",
        )
    gamma = old / new
    head.weight[num_old:] *= gamma
    return gamma
