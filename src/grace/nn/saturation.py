"""Saturation: the share of a backbone's feature directions in use (paper, Appendix B).

Shapes: N samples, d features.
"""

from typing import final

import torch
from torch import Tensor

from grace.base.errors import GraceError


def effective_rank(singular_values: Tensor, *, drop_below: float = 1e-5) -> float:
    """Exponential of the entropy of the normalised singular values.

    p_i = σ_i / Σσ,  eRank = exp(−Σ p_i ln(p_i + 1e-12)), over the σ_i greater than ``drop_below``.

    Args:
        singular_values: σ ≥ 0, shape (k,); not squared.
        drop_below: values up to this count as numerical noise (docs/how-grace-works.md).

    Returns:
        A value in [1, k]; 0 when no singular value is left (constant features).
    """
    sigma = singular_values.double()
    sigma = sigma[sigma > drop_below]
    if len(sigma) == 0:
        return 0.0
    p = sigma / sigma.sum()
    return float(torch.exp(-(p * torch.log(p + 1e-12)).sum()))


def normalised_effective_rank(
    singular_values: Tensor, num_samples: int, num_features: int
) -> float:
    """Saturation score eRank / min(N, d), in [0, 1] (paper, Appendix B, last equation).

    The divisor is not reduced for dropped singular values (docs/how-grace-works.md).

    Args:
        singular_values: σ ≥ 0 of the centred features, shape (k,).
        num_samples: N, at least 1.
        num_features: d, at least 1.
    """
    return effective_rank(singular_values) / min(num_samples, num_features)


@final
class FeatureMoments:
    """Computes saturation batch by batch, in O(d²) memory.

    Accumulates in float64 the sum and the Gram matrix of the features, shifted by the first
    batch's mean so that centring at the end cancels no digits. With S = Σ(z−c) and
    G = Σ(z−c)(z−c)ᵀ, the centred Gram matrix is G − SSᵀ/N, and its eigenvalues are the squared
    singular values of the centred N×d feature matrix.
    """

    def __init__(self) -> None:
        self._num_samples = 0
        self._shift: Tensor | None = None
        self._sum: Tensor | None = None
        self._gram: Tensor | None = None

    def update(self, outputs: Tensor, labels: Tensor | None = None) -> None:
        """Add one batch of features (B, d); labels are not used."""
        features = outputs.detach().double()
        if self._shift is None or self._sum is None or self._gram is None:
            self._shift = features.mean(dim=0)
            self._sum = torch.zeros_like(self._shift)
            self._gram = torch.zeros_like(torch.outer(self._shift, self._shift))
        shifted = features - self._shift
        self._num_samples += len(features)
        self._sum += shifted.sum(dim=0)
        self._gram += shifted.T @ shifted

    def singular_values(self) -> Tensor:
        """Return the singular values (d,) of the centred feature matrix, descending.

        Raises:
            GraceError: before the first sample.
        """
        if self._sum is None or self._gram is None:
            raise GraceError("saturation needs at least one sample: the data of the sweep is empty")
        centred = self._gram - torch.outer(self._sum, self._sum) / self._num_samples
        eigenvalues: Tensor = torch.linalg.eigvalsh(centred.cpu())
        return eigenvalues.clamp_min(0).sqrt().flip(0)

    def result(self) -> float:
        """Return the saturation of all batches, in [0, 1]."""
        sigma = self.singular_values()
        return normalised_effective_rank(sigma, self._num_samples, len(sigma))
