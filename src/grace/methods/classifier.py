"""A predictor of a method: backbones and a score of their features."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn


@final
@dataclass(frozen=True)
class Classifier:
    """A predictor: concatenates the backbones' features (B, D) and scores them, (B, K)."""

    backbones: Sequence[nn.Module]
    score: Callable[[Tensor], Tensor]
