"""The network that learns from two views of an image without its label. Shapes: d features."""

from typing import final

from torch import nn

from grace.networks.backbone import Backbone


@final
class TaskAgnostic(nn.Module):
    """A backbone with the two modules that its self-supervised losses compare features through.

    Args:
        backbone: images → features of width d.
        projector_width: h, hidden units of the projector.
        embedding_width: o, what the projector gives.
    """

    def __init__(self, backbone: Backbone, projector_width: int, embedding_width: int) -> None:
        super().__init__()
        width = backbone.feature_dim
        self.backbone = backbone
        self.projector = nn.Sequential(
            nn.Linear(width, projector_width),
            nn.ReLU(),
            nn.Linear(projector_width, embedding_width),
        )
        """Features → what views are compared by, d → h → o."""
        self.predictor = nn.Linear(width, width)
        """Present features → those that the network had before the task, d → d."""
