"""Backbones that differ in their last stage only: one trunk, and a branch for each of them.

Shapes: B images, C channels, H×W pixels, c channels of h×w after the trunk, d features.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.networks.backbone import Backbone


@final
class Branch(Backbone):
    """The last stage of a backbone, which reads what a trunk gives instead of images.

    Args:
        stage: last stage with pooling.
        feature_dim: width d of its features.
    """

    def __init__(self, stage: nn.Module, feature_dim: int) -> None:
        super().__init__()
        self.stage = stage
        self.feature_dim = feature_dim

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Map a trunk's output (B, c, h, w) to features (B, d)."""
        features: Tensor = self.stage(images)
        return features

    @override
    def stages(self) -> tuple[nn.Module, nn.Module]:
        """Return (nothing, this branch): it is one stage."""
        return nn.Identity(), self


@final
class Fork(nn.Module):
    """``[b₁(t(x)), …, b_n(t(x))]``: a trunk t, computed once for all branches.

    Args:
        trunk: images → what the branches read.
        branches: at least one.
    """

    def __init__(self, trunk: nn.Module, branches: Sequence[nn.Module]) -> None:
        super().__init__()
        self.trunk = trunk
        self.branches = nn.ModuleList(branches)

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to the branches' features side by side, (B, Σd)."""
        maps = self.trunk(images)
        return torch.cat([branch(maps) for branch in self.branches], dim=1)


def split(backbone: Backbone) -> tuple[nn.Module, Branch]:
    """Cut a backbone before its last stage into a trunk and a branch.

    They share its parameters and are in its mode.

    Raises:
        ValueError: if it is not known where to cut such a backbone.
    """
    trunk, stage = backbone.stages()
    branch = Branch(stage, backbone.feature_dim)
    return trunk.train(backbone.training), branch.train(backbone.training)
