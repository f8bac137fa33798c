"""The task-agnostic network: it learns from two views of an image without its label."""

from typing import final

from torch import nn

from grace.nn.backbone import Backbone


@final
class TaskAgnostic(nn.Module):
    """A backbone with the projector and the predictor of its self-supervised losses.

    Args:
        backbone: images → features of width d.
        projector_width: h, hidden units of the projector. More: slower, and more memory.
        embedding_width: o, outputs of the projector, in which views are compared.
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
        """Features → embeddings, d → h → o."""
        self.predictor = nn.Linear(width, width)
        """Features → features of the network from before the task, d → d."""
