"""Losses for classes with unequal numbers of images (DGR).

Shapes: B images, K classes. Teachers carry no gradient.
"""

import torch
from torch import Tensor

from grace.nn.losses.distillation import soft_distillation


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
