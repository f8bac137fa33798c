"""Fusion: BEEF calibrates the newest module beside the old ones.

Shapes: B images, K classes of which K_old are old, d features of each backbone, D of all.
"""

from collections.abc import Collection
from typing import final

import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.nn.heads import MASKED, Head
from grace.nn.losses.energy import Affine, fused_rows


@final
class Fusion(nn.Module):
    """One head for all modules: features (B, d) of each → logits (B, K); only α and β train.

    Args:
        old: weight (K_old, D) and bias (K_old,) of the old classes over the old features.
        prototypes: the newest module's trained head for old tasks.
        new: its trained head for new classes.
        tasks: task of each old class, from 0, shape (K_old,).
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
    """Return weight (K, D) and bias (K,) of a linear head, without gradients."""
    return head.get_parameter("weight").detach(), head.get_parameter("bias").detach()
