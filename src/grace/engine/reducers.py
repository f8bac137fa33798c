"""Reducers of the sweeps that several methods share."""

from typing import final

import torch
from torch import Tensor


@final
class Collect:
    """Keeps every output, as one float32 tensor (N, …) on the CPU, in the order of the data."""

    def __init__(self) -> None:
        self._outputs: list[Tensor] = []

    def update(self, outputs: Tensor, labels: Tensor) -> None:
        """Take one batch of outputs (B, …); labels are not used."""
        self._outputs.append(outputs.float().cpu())

    def result(self) -> Tensor:
        """Return all outputs stacked; an empty tensor when there were none."""
        return torch.cat(self._outputs) if self._outputs else torch.empty(0)
