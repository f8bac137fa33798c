"""Reweighted gradients of a linear head (DGR).

Shapes: K classes, D features. Norms are of the rows of the head's weight, a class each.
"""

import torch
from torch import Tensor


def accumulated_norms(accumulated: Tensor, gradient: Tensor) -> Tensor:
    """Add the length of each class's gradient to the sum so far, Φ_c + ‖∂L/∂w_c‖₂.

    A gradient that is not finite adds nothing; its step is skipped in float16.

    Args:
        accumulated: Φ, shape (K,).
        gradient: of the head's weight, shape (K, D).

    Returns:
        The new Φ, shape (K,).

    Source: He, "Gradient Reweighting: Towards Imbalanced Class-Incremental Learning", CVPR 2024.
    """
    norms = gradient.norm(dim=1)
    return accumulated + torch.where(norms.isfinite().all(), norms, 0.0)


def class_gradient_weights(
    accumulated: Tensor, old: Tensor, new: Tensor, discount: float
) -> Tensor:
    """Weigh classes by the inverse of their accumulated gradient norms.

    Within a group, α_c = min Φ / Φ_c: the class with the smallest norm has 1, one with twice that
    norm has ½. Between the groups, with ρ = mean Φ_new / mean Φ_old, old classes are
    weighed by ``min(1, ρ)`` and new ones by ``min(1, ρ·γ)``. Without old classes α alone counts.

    Args:
        accumulated: Φ ≥ 0, shape (K,).
        old: indices of the old classes, shape (K_old,).
        new: indices of the new classes, at least one, shape (K_new,).
        discount: γ > 0. Lower: new classes learn more slowly.

    Returns:
        Weights in [0, 1], shape (K,); 0 for classes of neither group.

    Source: He, CVPR 2024.
    """
    norms = accumulated.clamp_min(1e-12)
    weights = torch.zeros_like(norms)
    weights[new] = norms[new].min() / norms[new]
    if len(old) == 0:
        return weights
    ratio = norms[new].mean() / norms[old].mean()
    weights[new] *= (ratio * discount).clamp_max(1)
    weights[old] = norms[old].min() / norms[old] * ratio.clamp_max(1)
    return weights


def weighted_rows(weights: Tensor, gradient: Tensor) -> Tensor:
    """Scale the gradient of each class by its weight.

    Args:
        weights: of the classes, shape (K,).
        gradient: of the head's weight (K, D), or of its bias (K,).

    Returns:
        The scaled gradient, of the same shape.
    """
    return weights.reshape(-1, *[1] * (gradient.dim() - 1)) * gradient


def distillation_factor(classification: Tensor, distillation: Tensor) -> Tensor:
    """Compute κ, which scales the distillation gradient to the length of the classification one.

    ``κ = ‖(weight_c·‖∂L_cn/∂w_c‖)_c‖₂ / ‖(‖∂L_kd/∂w_c‖)_c‖₂``: a factor on L_kd
    does not change κ·∂L_kd.

    Args:
        classification: weight_c·∂L_cn/∂w_c of all classes, shape (K, D).
        distillation: ∂L_kd/∂w, shape (K, D), 0 for new classes. If all of it is 0, κ is finite.

    Returns:
        κ ≥ 0, a scalar.

    Source: He, CVPR 2024.
    """
    factor: Tensor = classification.norm() / distillation.norm().clamp_min(1e-12)
    return factor
