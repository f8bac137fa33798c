"""Mean losses of an epoch or sweep, and the error for a loss that is not finite."""

import math
from collections.abc import Mapping
from typing import final

import torch
from pydantic import BaseModel
from torch import Tensor

from grace.base.errors import GraceError
from grace.engine.phase import Loss
from grace.engine.ranks import Ranks
from grace.settings.recipe import Recipe


class NonFiniteLossError(GraceError):
    """A loss became infinite or not a number; the learner keeps its state from before the task.

    Args:
        what: what is not finite, and where.
        phase: name of the phase whose learning rate is too high.
    """

    def __init__(self, what: str, phase: str = "") -> None:
        super().__init__(
            what, "lower the learning rate of this phase's recipe, or its weight_decay"
        )
        self.phase = phase

    def name_setting(self, method: BaseModel) -> None:
        """Name the learning rate as it is set, if a recipe of the method has the phase's name."""
        recipe = getattr(method, self.phase, None) if self.phase else None
        if isinstance(recipe, Recipe):
            self.remedy = (
                f"lower the learning rate of this phase, method.{self.phase}.lr={recipe.lr:g}, or "
                "its weight_decay"
            )


@final
class LossMeter:
    """Sums named losses on the device, so that no step waits for it.

    Args:
        device: that the losses are on.
        ranks: the processes that share the batches.
    """

    def __init__(self, device: torch.device, ranks: Ranks) -> None:
        self._device = device
        self._ranks = ranks
        self._sums: dict[str, Tensor] = {}
        self._first_bad: dict[str, Tensor] = {}
        self._num_batches = 0
        self._num_images = 0

    def add(self, losses: Mapping[str, Loss], num_images: int) -> None:
        """Add this process's part of a batch's losses (scalars), means over ``num_images``."""
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

    def means(self, place: str, phase: str = "") -> dict[str, float]:
        """Return the mean of every loss per image, over all processes.

        Args:
            place: where this happens, for messages: "phase 'grow', epoch 3".
            phase: name of the phase whose learning rate is too high if a loss is not finite.

        Raises:
            NonFiniteLossError: naming the first batch with a bad loss, in every process.
        """
        self._ranks.sum(list(self._sums.values()))
        self._ranks.minimum(list(self._first_bad.values()))
        first_bad = {name: float(batch) for name, batch in self._first_bad.items()}
        name = min(first_bad, key=first_bad.__getitem__)
        if first_bad[name] < math.inf:
            raise NonFiniteLossError(
                f"loss '{name}' is not finite in {place}, batch {int(first_bad[name])}", phase
            )
        return {name: float(value) / self._num_images for name, value in self._sums.items()}
