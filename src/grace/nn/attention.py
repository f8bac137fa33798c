"""TagFex's networks: the task-agnostic one, and the attention that merges the maps of two networks.

Shapes: B images, c channels of h×w in a map, N tokens of an image, d their width.
"""

from typing import final

import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.base.errors import GraceError
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


@final
class Pick(nn.Module):
    """Returns one of several outputs of the part before it.

    Args:
        place: index of the output, from 0.
    """

    def __init__(self, place: int) -> None:
        super().__init__()
        self._place = place

    @override
    def forward(self, outputs: tuple[Tensor, ...]) -> Tensor:
        """Return the chosen output, of any shape."""
        return outputs[self._place]


def tokens(last_map: Tensor) -> Tensor:
    """Reshape a backbone's last map to tokens (B, N, d).

    Args:
        last_map: (B, c, h, w), whose h·w positions become tokens of width c; (B, N, d), already
            tokens; or (B, d), one token.
    """
    if last_map.dim() == 4:
        return last_map.flatten(2).transpose(1, 2)
    return last_map.unsqueeze(1) if last_map.dim() == 2 else last_map


@final
class MergeAttention(nn.Module):
    """Merges two maps: tokens of one attend to the tokens of both, and are averaged.

    With s the specific and a the agnostic tokens, each after a layer norm of its own:

        Q = s W_q,   K = [a W_ka ; s W_ks],   V = [a W_va ; s W_vs],
        merged = mean over the tokens of s of softmax(Q Kᵀ / sqrt(d / heads)) V,

    by heads, whose outputs are concatenated. The projections have no biases, and there is no output
    projection. No gradient flows back into a.

    Args:
        width: d of the tokens of both maps.
        num_heads: heads, a divisor of d. More heads: each sees fewer dimensions.

    Raises:
        GraceError: if the number of heads does not divide the width.

    Source: Zheng et al., "Task-Agnostic Guided Feature Expansion for Class-Incremental Learning"
    (CVPR 2025).
    """

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        if width % num_heads:
            raise GraceError(
                f"{num_heads} attention heads cannot share maps of {width} channels evenly",
                "set method.attention_heads to a divisor",
            )
        self._num_heads = num_heads
        self.agnostic_norm = nn.LayerNorm(width)
        self.specific_norm = nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.agnostic_keys = nn.Linear(width, width, bias=False)
        self.specific_keys = nn.Linear(width, width, bias=False)
        self.agnostic_values = nn.Linear(width, width, bias=False)
        self.specific_values = nn.Linear(width, width, bias=False)

    @override
    def forward(self, agnostic: Tensor, specific: Tensor) -> Tensor:
        """Map two last maps (B, c, h, w) of equally many channels to a vector per image, (B, d)."""
        other = self.agnostic_norm(tokens(agnostic.detach()))
        own = self.specific_norm(tokens(specific))
        queries = self._by_head(self.query(own))
        keys = torch.cat([self.agnostic_keys(other), self.specific_keys(own)], dim=1)
        values = torch.cat([self.agnostic_values(other), self.specific_values(own)], dim=1)
        # The queries are scaled first, so that no product leaves float16's range.
        scaled = queries * queries.shape[-1] ** -0.5
        weights = (scaled @ self._by_head(keys).transpose(-2, -1)).softmax(dim=-1)
        gathered: Tensor = weights @ self._by_head(values)
        return gathered.mean(dim=2).flatten(1)

    def _by_head(self, projected: Tensor) -> Tensor:
        """Split tokens (B, N, d) by heads, (B, heads, N, d / heads)."""
        width = projected.shape[2] // self._num_heads
        return projected.view(*projected.shape[:2], self._num_heads, width).transpose(1, 2)
