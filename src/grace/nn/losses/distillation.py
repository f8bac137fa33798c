"""Distillation losses. Shapes: B images, K classes, d features. Teachers carry no gradient."""

import torch.nn.functional as F
from torch import Tensor


def logit_distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL divergence of softened predictions, T²·KL(σ(z_exp/T) ‖ σ(z_com/T)) (paper Eq. 9).

    Args:
        student: z_com, shape (B, K).
        teacher: z_exp, shape (B, K).
        temperature: T > 0. Higher: small probabilities count more.

    Returns:
        Scalar: the sum over classes, averaged over the batch, times T².
    """
    # In float32 whatever the precision: near the optimum the terms cancel to rounding.
    log_student = F.log_softmax(student.float() / temperature, dim=1)
    log_teacher = F.log_softmax(teacher.float() / temperature, dim=1)
    divergence = F.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)
    return temperature**2 * divergence


def soft_distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of softened predictions, KDsoft = −Σ_c σ(b/T)_c · log σ(a/T)_c.

    Without the factor T² of ``logit_distillation``; the gradient is otherwise the same
    (docs/protocols.md#distillation).

    Args:
        student: a, shape (B, K).
        teacher: b, shape (B, K).
        temperature: T > 0.

    Returns:
        Scalar: the sum over classes, averaged over the batch.
    """
    log_student = F.log_softmax(student.float() / temperature, dim=1)
    probabilities = F.softmax(teacher.float() / temperature, dim=1)
    return -(probabilities * log_student).sum(dim=1).mean()


def balanced_distillation(
    student: Tensor, teacher: Tensor, class_weights: Tensor, temperature: float
) -> Tensor:
    """Distillation from a reweighted teacher, −Σ_c q_c · log σ(z_S/T)_c (docs/methods/foster.md).

    ``q ∝ w ⊙ σ(z_T/T)``, summing to 1: classes of few images weigh more.

    Args:
        student: z_S, shape (B, K).
        teacher: z_T, shape (B, K).
        class_weights: w > 0, shape (K,).
        temperature: T > 0.

    Returns:
        Scalar: the sum over classes, averaged over the batch.
    """
    # w ⊙ σ(z/T), renormalised, is σ((z + T·ln w)/T).
    reweighted = teacher.float() + temperature * class_weights.log()
    return soft_distillation(student, reweighted, temperature)


def feature_distillation(projected: Tensor, teacher: Tensor) -> Tensor:
    """Mean squared error of projected student features against the teacher's (paper Eq. 10).

    Args:
        projected: W_projᵀ φ_st, shape (B, 2d).
        teacher: [φ_merge, φ_prov], shape (B, 2d).

    Returns:
        Scalar: the mean over the batch and all 2d components.
    """
    return F.mse_loss(projected, teacher)


def distillation_share(num_old: int, num_classes: int) -> float:
    """Trade-off λ = K_old / K between distillation and cross-entropy (docs/methods/wa.md)."""
    assert 0 <= num_old <= num_classes
    return num_old / num_classes
