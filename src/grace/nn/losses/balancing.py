"""Weights of classes that differ in their number of images. Shapes: K classes."""

import torch
from torch import Tensor


def effective_number_weights(counts: Tensor, beta: float) -> Tensor:
    """Weigh classes by the inverse of their effective number of images (docs/methods/foster.md).

    ``w_c ∝ (1 − β) / (1 − β^{n_c})``, normalised to sum to K: 1 for all classes at β = 0, and
    inversely proportional to n_c as β approaches 1.

    Args:
        counts: images n_c of each class, shape (K,); a class without counts as one of one image.
        beta: β in [0, 1).

    Returns:
        w, shape (K,), float32.

    Source: Cui et al., Class-Balanced Loss, CVPR 2019, Eq. 2.
    """
    assert 0 <= beta < 1
    # In float64: at β near 1 both differences are small. (1 − β) cancels in the normalisation.
    powers = torch.pow(torch.tensor(beta, dtype=torch.float64), counts.double().clamp_min(1))
    weights = 1 / (1 - powers)
    return (weights * len(counts) / weights.sum()).float()
