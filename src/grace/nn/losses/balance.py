"""Losses and gradients for classes with unequal numbers of images (DGR, FOSTER).

Shapes: B images, K classes, D features. Teachers carry no gradient; norms are of the rows of the
head's weight, a class each.
"""

import torch
from torch import Tensor

from grace.nn.losses.distillation import soft_distillation


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


def log_prior(counts: Tensor) -> Tensor:
    """Compute the logarithms of the classes' shares of the images, log π_c = log(n_c / Σ n).

    A class without images counts as one of one image, so that no logarithm is of 0.

    Args:
        counts: images n_c ≥ 0 of each class, shape (K,).

    Returns:
        log π, shape (K,), float32.

    Source: He, "Gradient Reweighting: Towards Imbalanced Class-Incremental Learning", CVPR 2024.
    """
    shares = counts.double().clamp_min(1)
    return (shares / shares.sum()).log().float()


def lost_direction(lost: Tensor) -> Tensor:
    """Scale the numbers of lost images to unit length, p = r / ‖r‖₂ (0 where nothing is lost).

    Equal to r / Σr divided by its own length.

    Args:
        lost: images r_c ≥ 0 of each class that were seen and are no longer there, shape (K,).

    Returns:
        p in [0, 1], shape (K,), float32.

    Source: He, CVPR 2024.
    """
    lost = lost.double()
    direction: Tensor = lost / lost.norm().clamp_min(1e-12)
    return direction.float()


def lost_evenness(lost: Tensor) -> Tensor:
    """Measure how evenly classes have lost images: the entropy R = −Σ q·log q / log K.

    q is r + 0.001, scaled to sum to 1. R is 1 if all classes have lost as many, and near 0 if one
    class has lost them all. One class alone, or none, gives 1.

    Args:
        lost: images r_c ≥ 0 that each class has lost, shape (K,).

    Returns:
        R in [0, 1], a scalar, float32.

    Source: He, CVPR 2024.
    """
    if len(lost) < 2:
        return torch.ones(())
    shares = lost.double() + 0.001
    shares = shares / shares.sum()
    entropy = -(shares * shares.log()).sum()
    return (entropy / torch.tensor(len(lost), dtype=torch.float64).log()).float()


def distribution_aware_distillation(
    student: Tensor, teacher: Tensor, direction: Tensor, evenness: Tensor, temperature: float
) -> Tensor:
    """Distil more strongly the classes that have lost more images (DAKD).

    ``R·KDsoft(z, z_T, T) + (1 − R)·KDsoft(p ⊙ z + (1 − p) ⊙ z_T, z_T, T)``: in the second term,
    the teacher's logit replaces the student's for classes that have lost little. At R = 1 this is
    plain distillation.

    Args:
        student: z, shape (B, K).
        teacher: z_T, shape (B, K).
        direction: p, shape (K,).
        evenness: R, a scalar.
        temperature: T > 0. Higher: small probabilities count more.

    Returns:
        Scalar: the sum over classes, averaged over the batch, without a factor T².

    Source: He, CVPR 2024.
    """
    student, teacher = student.float(), teacher.float()
    mixed = direction * student + (1 - direction) * teacher
    plain = soft_distillation(student, teacher, temperature)
    return evenness * plain + (1 - evenness) * soft_distillation(mixed, teacher, temperature)


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
