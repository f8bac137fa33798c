"""The mean of a phase's weights over its last epochs (stochastic weight averaging)."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from grace.settings.recipe import Recipe

_MEAN = "mean/"
"""Prefix of the names of means in a snapshot: ``mean/head.weight``."""


@final
class WeightAverage:
    """Averages what a phase trains after each of its last epochs, and sets it to the mean.

    w̄ ← w̄ + (w − w̄)/n after the n-th of the recipe's ``average_epochs`` last epochs, in float32.
    Running statistics of batch norm are averaged too. Those of the mean weights differ from this
    mean only by terms of second order in the distances between the epochs' weights; the exact ones
    would cost another pass over the images. Integers, such as step counts, keep their last value.

    Args:
        recipe: of the phase.
        state: what it may change, by name, of any shape; set to the mean in the end.

    Source: Izmailov et al., "Averaging Weights Leads to Wider Optima and Better Generalization",
    UAI 2018, Alg. 1.
    """

    def __init__(self, recipe: Recipe, state: Mapping[str, Tensor]) -> None:
        self._epochs = recipe.epochs
        self._first = recipe.epochs - recipe.average_epochs
        averaged = {n: t for n, t in state.items() if t.is_floating_point()}
        self._means = {
            f"{_MEAN}{name}": torch.zeros_like(tensor, dtype=torch.float32)
            for name, tensor in (averaged if recipe.average_epochs else {}).items()
        }

    def saved_after(self, epochs: int) -> Mapping[str, Tensor]:
        """Return the tensors that a snapshot after some epochs must hold, of any shape, by name."""
        return self._means if self._first < epochs < self._epochs else {}

    @torch.no_grad()
    def epoch_finished(self, epoch: int, state: Mapping[str, Tensor]) -> None:
        """Add the present weights; after the last epoch, set them to the mean.

        Args:
            epoch: from 0.
            state: as given before, of any shape, with the values after the epoch.
        """
        if epoch < self._first:
            return
        for name, mean in self._means.items():
            mean.lerp_(state[name.removeprefix(_MEAN)].float(), 1 / (epoch + 1 - self._first))
        if epoch + 1 == self._epochs:
            for name, mean in self._means.items():
                state[name.removeprefix(_MEAN)].copy_(mean)
