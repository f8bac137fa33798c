"""Distillation losses. Shapes: B images, K classes, d features. Teachers carry no gradient."""

import torch.nn.functional as F
from torch import Tensor


def logit_distillation(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """KL divergence of softened predictions, T²·KL(σ(z_exp/T) ‖ σ(z_com/T)) (paper Eq. 9).

    Args:
        student: z_com, shape (B, K).
        teacher: z_exp, shape (B, K).
        temperature: T > 0.

    Returns:
        Scalar: the sum over classes, averaged over the batch, times T².
    """
    # In float32 whatever the precision: near the optimum the terms cancel to rounding.
    log_student = F.log_softmax(student.float() / temperature, dim=1)
    log_teacher = F.log_softmax(teacher.float() / temperature, dim=1)
    divergence = F.kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)
    return temperature**2 * divergence


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
    """Dynamic trade-off λ = K_old / K between distillation and cross-entropy (spec §5.3.11)."""
    assert 0 <= num_old <= num_classes
    return num_old / num_classes
