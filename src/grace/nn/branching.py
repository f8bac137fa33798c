"""Backbones that share their first stages: one trunk, and a branch for each backbone.

Shapes: B images, C channels, H×W pixels, c channels of h×w after the trunk, d features.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.base.errors import GraceError
from grace.nn.backbone import Backbone, JoinedStage


@final
class Branch(Backbone):
    """The last stages of a backbone, which read the output of a trunk instead of images.

    Args:
        backbone: to cut; shared, not copied.
        at: index of its first stage that belongs to the branch.
    """

    def __init__(self, backbone: Backbone, at: int) -> None:
        super().__init__()
        self.name = backbone.name
        self.feature_dim = backbone.feature_dim
        self.map_channels = backbone.map_channels[at:]
        self.stage = nn.Sequential(*backbone.stages()[at:])
        self.pool = backbone.pool

    @override
    def stages(self) -> tuple[nn.Module, ...]:
        """Return the stages behind the cut."""
        return tuple(self.stage)

    @override
    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """Map a trunk's output (B, c, h, w) to the outputs of the stages behind the cut."""
        maps: list[Tensor] = []
        for stage in self.stage:
            maps.append(stage(maps[-1] if maps else images))
        return tuple(maps)


@final
class Fork(nn.Module):
    """``[b₁(t(x)), …, b_n(t(x))]``: a trunk t, computed once for all branches.

    Args:
        trunk: images → input of the branches.
        branches: at least one.
    """

    def __init__(self, trunk: nn.Module, branches: Sequence[nn.Module]) -> None:
        super().__init__()
        self.trunk = trunk
        self.branches = nn.ModuleList(branches)

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to the concatenated features of all branches, (B, Σd)."""
        maps = self.trunk(images)
        return torch.cat([branch(maps) for branch in self.branches], dim=1)


def split(backbone: Backbone, at: int = -1) -> tuple[nn.Module, Branch]:
    """Cut a backbone before one of its stages into a trunk and a branch.

    They share its parameters and are in its mode. ``branch(trunk(images))`` equals
    ``backbone(images)``.

    Args:
        backbone: with two stages or more.
        at: index in ``backbone.stages()`` of the branch's first stage, negative from the end: the
            default cuts before the last stage. The first stage cannot be cut off, because the trunk
            would be empty.

    Raises:
        GraceError: if there is no stage before the cut, or none after it.
    """
    stages = backbone.stages()
    first = at if at >= 0 else len(stages) + at
    if not 0 < first < len(stages):
        where = "its last stage" if at == -1 else f"stage {at}"
        number = "1 stage" if len(stages) == 1 else f"{len(stages)} stages"
        raise GraceError(
            f"backbone '{backbone.name}' cannot be cut before {where}, because it has {number}",
            "choose a ResNet or EfficientNet",
        )
    layers: list[nn.Module] = []
    for stage in stages[:first]:
        layers += stage if isinstance(stage, JoinedStage) else [stage]
    trunk, branch = nn.Sequential(*layers), Branch(backbone, first)
    return trunk.train(backbone.training), branch.train(backbone.training)
