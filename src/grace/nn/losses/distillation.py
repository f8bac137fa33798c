"""Losses that compare two networks or two views: distillation, transfer, contrast.

Shapes: B images, K classes, K_new new ones, d features, o embedding width. Teachers carry no
gradient. Of two views of image i the rows are 2i and 2i + 1.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from grace.nn.losses.classification import cross_entropy, new_class_cross_entropy


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
    """Trade-off λ = K_old / K between distillation and cross-entropy (methods/wa.py)."""
    assert 0 <= num_old <= num_classes
    return num_old / num_classes


def guided_transfer(
    logits: Tensor, guide: Tensor, labels: Tensor, num_old: int, temperature: float
) -> Tensor:
    """Distil a guide's logits into the new ones, if the guide's loss is lower.

    ``KL(σ(g/T) ‖ σ(z[:, K_old:]/T))``, a mean over the images of new classes, without the factor
    T²; 0 unless the guide's cross-entropy among the new classes, on these images, is below that of
    z among all K classes, on all images.

    Args:
        logits: z, shape (B, K).
        guide: g, shape (B, K_new); it gets no gradient.
        labels: class indices, shape (B,).
        num_old: outputs of old classes, the first ones.
        temperature: T > 0. Higher: small probabilities count more.

    Returns:
        Scalar; 0 for a batch without an image of a new class.
    """
    guide, is_new = guide.detach().float(), labels >= num_old
    # In float32 whatever the precision: near the optimum the terms cancel to rounding.
    own = F.log_softmax(logits[:, num_old:].float() / temperature, dim=1)
    target = F.log_softmax(guide / temperature, dim=1)
    divergences = F.kl_div(own, target, reduction="none", log_target=True).sum(dim=1)
    mean = torch.where(is_new, divergences, 0.0).sum() / is_new.sum().clamp_min(1)
    guide_loss = new_class_cross_entropy(guide, labels - num_old, 0)
    return torch.where(guide_loss < cross_entropy(logits.detach(), labels), mean, 0.0)


def info_nce(anchors: Tensor, candidates: Tensor, temperature: float) -> Tensor:
    """InfoNCE: cross-entropy of finding each image's other view among all views.

    ``− mean_r log( exp(s(r, r')/τ) / Σ_{q ≠ r} exp(s(r, q)/τ) )``, where s is the cosine of an
    anchor and a candidate, r' is the row of the other view of r's image, and a row is never
    compared with the candidate of the same row. With candidates from a frozen network, it
    distils that network's embeddings.

    Args:
        anchors: (2B, o).
        candidates: (2B, o), the anchors themselves or another network's embeddings.
        temperature: τ > 0. Lower: the most similar views count more.

    Returns:
        Scalar: the mean over the 2B anchors; 0 for a single image, whose other view has no rival.

    Source: van den Oord et al., arXiv:1807.03748; in the form of Chen et al., "A Simple Framework
    for Contrastive Learning of Visual Representations" (ICML 2020), Eq. 1.
    """
    rows = torch.arange(len(anchors), device=anchors.device)
    # Not in the precision of training: rounding to bfloat16 and dividing by τ would move the
    # logits by hundredths.
    with torch.autocast(anchors.device.type, enabled=False):
        one, other = (F.normalize(given.float(), dim=1) for given in (anchors, candidates))
        logits = (one @ other.T / temperature).masked_fill(rows == rows[:, None], float("-inf"))
        return F.cross_entropy(logits, rows ^ 1)
