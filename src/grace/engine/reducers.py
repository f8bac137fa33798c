"""Reducers of the sweeps that several methods share."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor


@final
class Collect:
    """Collects all outputs, as one float32 tensor (N, …) on the CPU, in the order of the data."""

    def __init__(self) -> None:
        self._outputs: list[Tensor] = []

    def update(self, outputs: Tensor, labels: Tensor) -> None:
        """Add one batch of outputs (B, …); labels are not used."""
        self._outputs.append(outputs.float().cpu())

    def result(self) -> Tensor:
        """Return all outputs (N, …); shape (0,) if there were none."""
        return torch.cat(self._outputs) if self._outputs else torch.empty(0)


@final
class SquaredGradients:
    """Averages the squared gradient of every parameter over the batches (methods/ewc.py)."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._num_batches = 0

    def update(self, gradients: Mapping[str, Tensor]) -> None:
        """Add the gradients of one batch's mean loss, each in its parameter's shape."""
        self._num_batches += 1
        for name, gradient in gradients.items():
            square = gradient.square()
            self._sums[name] = self._sums[name] + square if name in self._sums else square

    def result(self) -> dict[str, Tensor]:
        """Return the means by parameter, in its shape and on its device."""
        return {name: total / self._num_batches for name, total in self._sums.items()}
