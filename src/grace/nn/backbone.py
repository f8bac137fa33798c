"""A backbone: stages that map images to feature maps, and a pool that makes features.

Shapes: B images, C channels, H×W pixels, c channels of h×w in a map, d features.
"""

from abc import ABC, abstractmethod
from typing import final

from torch import Tensor, nn
from typing_extensions import override


class Backbone(nn.Module, ABC):
    """A sequence of stages, ``pool(stage_m(… stage_1(stem(images))))``.

    A *map* is the output of a stage before any pooling to a vector: (B, c, h, w). Transformers have
    one stage, whose map is all tokens (B, T, d), the class token included if there is one; their
    pool makes the features from the tokens. A few models of timm give neither; their one map is the
    feature vector (B, d) itself, and their pool changes nothing. A method that needs (B, c, h, w)
    must therefore check the number of dimensions.

    Two backbones can be merged when their parameters agree in names and shapes. Every subclass
    sets the four fields in its ``__init__``.
    """

    name: str
    """Value of the setting ``backbone.name``."""
    feature_dim: int
    """Width d of the features."""
    map_channels: tuple[int, ...]
    """Channels c of the map after each stage; width of a token for transformers."""
    pool: nn.Module
    """Last map → features (B, d). It has no parameters that the stages do not have."""

    @abstractmethod
    def stages(self) -> tuple[nn.Module, ...]:
        """Return the stages in order: the stem with its pooling, stage 1, …, stage m.

        The first reads images, each other one the map before it. They share this backbone's
        parameters.
        """

    @abstractmethod
    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """Map images (B, C, H, W) to the output of every stage, as many as ``stages()`` has.

        ResNet-32 at 32 pixels gives 16×32×32, 16×32×32, 32×16×16 and 64×8×8.
        """

    @override
    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, C, H, W) to features (B, d)."""
        features: Tensor = self.pool(self.maps(images)[-1])
        return features


@final
class JoinedStage(nn.Sequential):
    """A stage made of several layers of the model, such as a ResNet's stem.

    A trunk names these layers one by one (``branching.split``), as saved learners do.
    """


@final
class WithMaps(nn.Module):
    """Returns features and last map together, ``(φ(x), maps(x)[-1])``.

    Its parameters are the backbone's; their names start with ``backbone.``.

    Args:
        backbone: shared, not copied.
    """

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    @override
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Map images (B, C, H, W) to features (B, d) and the last map, usually (B, c, h, w)."""
        last_map = self.backbone.maps(images)[-1]
        return self.backbone.pool(last_map), last_map
