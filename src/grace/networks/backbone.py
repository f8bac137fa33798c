"""What a backbone is: any module from images (B, C, H, W) to features (B, d) that states its d."""

from abc import ABC, abstractmethod

from torch import Tensor, nn
from typing_extensions import override


class Backbone(nn.Module, ABC):
    """Image → feature vector of width ``feature_dim``.

    ``name`` rebuilds it (``networks.build_backbone``); two backbones can be merged when their
    parameters agree in names and shapes.
    """

    feature_dim: int

    @abstractmethod
    @override
    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to features (B, feature_dim)."""

    @abstractmethod
    def stages(self) -> tuple[nn.Module, nn.Module]:
        """Return (everything before the last stage, the last stage with pooling), composable.

        ``second(first(images))`` equals ``self(images)``; both share this backbone's parameters.
        """
