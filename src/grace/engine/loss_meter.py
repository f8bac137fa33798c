"""Sums of losses over a pass, and what happens when one of them is no number."""

import math
from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from grace.engine.phase import Loss
from grace.engine.ranks import Ranks
from grace.text.refusals import GraceError


class NonFiniteLossError(GraceError):
    """A loss became infinite or not a number; the learner keeps its state from before the task."""


@final
class LossMeter:
    """Sums of named losses, kept on the device: nothing waits for it within a pass.

    Args:
        device: where losses are.
        ranks: the processes whose losses add up to those of the batches.
    """

    def __init__(self, device: torch.device, ranks: Ranks) -> None:
        self._device = device
        self._ranks = ranks
        self._sums: dict[str, Tensor] = {}
        self._first_bad: dict[str, Tensor] = {}
        self._num_batches = 0
        self._num_images = 0

    def add(self, losses: Mapping[str, Loss], num_images: int) -> None:
        """Take this process's part of a batch's losses, which are means over ``num_images``."""
        self._num_batches += 1
        self._num_images += num_images
        for name, loss in losses.items():
            value = loss.value.detach().double()
            if name not in self._sums:
                self._sums[name] = torch.zeros((), dtype=torch.float64, device=self._device)
                self._first_bad[name] = torch.full_like(self._sums[name], math.inf)
            self._sums[name] += value * num_images
            bad = torch.where(torch.isfinite(value), math.inf, float(self._num_batches))
            self._first_bad[name] = torch.minimum(self._first_bad[name], bad)

    def means(self, place: str, culprit: str = "this phase") -> dict[str, float]:
        """Return the means per image, over all processes.

        Args:
            place: the pass, for people: "phase 'grow', epoch 3".
            culprit: whose recipe is at fault if they are no numbers.

        Raises:
            NonFiniteLossError: naming the first batch with a bad loss, in every process.
        """
        self._ranks.sum(list(self._sums.values()))
        self._ranks.minimum(list(self._first_bad.values()))
        first_bad = {name: float(batch) for name, batch in self._first_bad.items()}
        name = min(first_bad, key=first_bad.__getitem__)
        if first_bad[name] < math.inf:
            raise NonFiniteLossError(
                f"loss '{name}' is not finite in {place}, batch {int(first_bad[name])}",
                f"lower the learning rate of {culprit}'s recipe",
            )
        return {name: float(value) / self._num_images for name, value in self._sums.items()}
