"""Fusion: the newest module beside the old ones, as BEEF calibrates it.

Shapes: B images, K classes of which K_old are old, d features of each backbone, D of all.
"""

from collections.abc import Collection
from typing import final

import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.networks.heads import MASKED, Head
from grace.objectives.energy import Affine, fused_rows


@final
class Fusion(nn.Module):
    """All modules as one head, features (B, d) of each → logits (B, K), in which α and β train.

    Args:
        old: weight and bias of the old classes over the old features.
        prototypes: the newest module's head for old tasks, trained.
        new: its head for new classes, trained.
        tasks: each old class's task, from 0, shape (K_old,).
        forgotten: classes whose logits are masked.
    """

    def __init__(
        self, old: Affine, prototypes: Head, new: Head, tasks: Tensor, forgotten: Collection[int]
    ) -> None:
        super().__init__()
        self.alpha = nn.Parameter(old[0].new_zeros(prototypes.num_classes))
        self.beta = nn.Parameter(old[0].new_zeros(prototypes.num_classes))
        self._fixed = old, affine(prototypes), affine(new)
        self._tasks = tasks
        self._hidden = torch.zeros(len(tasks) + new.num_classes, dtype=torch.bool)
        self._hidden[list(forgotten)] = True
        self._hidden = self._hidden.to(tasks.device)

    def rows(self) -> Affine:
        """Return weight (K, D) and bias (K,) of the head."""
        return fused_rows(*self._fixed, (self.alpha, self.beta), self._tasks)

    @override
    def forward(self, *features: Tensor) -> Tensor:
        logits = nn.functional.linear(torch.cat(features, dim=1), *self.rows())
        return logits.masked_fill(self._hidden, MASKED)


def affine(head: Head) -> Affine:
    """Return weight and bias of a linear head, without gradients."""
    return head.get_parameter("weight").detach(), head.get_parameter("bias").detach()
