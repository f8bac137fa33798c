"""A head of auto-encoders: the class that reconstructs the features best has the highest score.

Shapes: B images, D features, K classes, H latent numbers of each auto-encoder.
"""

from typing import Self, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.nn.heads import Head


@final
class AutoEncoders(Head):
    """One small auto-encoder without biases for every class, stored in two tensors.

    ``h_c = tanh(W_c φ)``, ``φ̂_c = tanh(V_c h_c)``, ``e_c = clamp(−s·‖φ̂_c − φ‖₁, ±limit)``. Each
    number starts as PyTorch draws a 1×1 convolution: U(−1/√n, 1/√n) with n inputs, which are D for
    ``W`` and H for ``V``.

    Args:
        in_features: width D of the features.
        num_classes: number of auto-encoders K.
        generator: CPU generator that draws the weights; ``None`` leaves them undrawn.
        latent_dim: H. More: better reconstructions, and more parameters per class.
        scale: s. Higher: scores differ more.
        limit: largest absolute score.

    Source: Chen et al., "CREATE" (CVPR 2025, arXiv:2503.17677).
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        generator: torch.Generator | None,
        *,
        latent_dim: int = 32,
        scale: float = 0.1,
        limit: float = 500.0,
    ) -> None:
        super().__init__(num_classes)
        self.scale = scale
        self.limit = limit
        encoders = torch.empty(num_classes, latent_dim, in_features)
        decoders = torch.empty(num_classes, in_features, latent_dim)
        if generator is not None:
            for weight in (encoders, decoders):
                bound = weight.shape[2] ** -0.5
                weight.uniform_(-bound, bound, generator=generator)
        self.encoders = nn.Parameter(encoders)
        self.decoders = nn.Parameter(decoders)

    @property
    @override
    def in_features(self) -> int:
        return self.encoders.shape[2]

    def encode(self, features: Tensor) -> Tensor:
        """Map features φ (B, D) to the latents h (B, K, H) of every auto-encoder."""
        return torch.tanh(torch.einsum("bd,khd->bkh", features, self.encoders))

    @override
    def score(self, features: Tensor) -> Tensor:
        latents = self.encode(features)
        reconstructed = torch.tanh(torch.einsum("bkh,kdh->bkd", latents, self.decoders))
        # In float32 whatever the precision: the sum has many terms, the scores are close.
        errors = (reconstructed.float() - features.float().unsqueeze(1)).abs().sum(dim=2)
        return (-self.scale * errors).clamp(-self.limit, self.limit)

    @override
    def fresh(self, in_features: int, num_classes: int, generator: torch.Generator) -> Self:
        latent_dim = self.encoders.shape[1]
        options = {"scale": self.scale, "limit": self.limit}
        return type(self)(in_features, num_classes, generator, latent_dim=latent_dim, **options)
