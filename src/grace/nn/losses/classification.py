"""Classification losses. Shapes: B images, K classes; the first K_old of them are old."""

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(
    logits: Tensor, labels: Tensor, log_prior: Tensor | None = None, shared: Tensor | None = None
) -> Tensor:
    """Mean cross-entropy −log σ(z)_y over all K logits (paper ℓ_CE), or −log σ(z + log π)_y.

    With the prior, log π gives frequent classes their advantage in training, so that z itself need
    not learn it, and predictions by z favour no class. With label smoothing, the target is
    (1 − ε)·onehot(y) + ε·u instead of onehot(y).

    Args:
        logits: z, shape (B, K).
        labels: class indices, shape (B,).
        log_prior: log π, shape (K,); ``None``: no prior.
        shared: ε·u, see ``shared_target``, shape (K,); ``None``: no label smoothing.

    Returns:
        Scalar.

    Source: Menon et al., "Long-Tail Learning via Logit Adjustment", ICLR 2021, Eq. 10; Ren et al.,
    "Balanced Meta-Softmax for Long-Tailed Visual Recognition", NeurIPS 2020, Eq. 4.
    """
    if log_prior is not None:
        logits = logits.float() + log_prior
    if shared is None:
        return F.cross_entropy(logits, labels)
    own = (1 - shared.sum()) * F.one_hot(labels, len(shared))
    return F.cross_entropy(logits, own + shared)


def shared_target(smoothing: float, is_live: Tensor, log_prior: Tensor | None = None) -> Tensor:
    """Compute the part ε·u of the target that label smoothing gives to all classes.

    u is even among the classes, 1/K, or π with a prior: only then do the logits z, from which the
    prior is absent, learn no preference among the classes that an image does not belong to.

    Args:
        smoothing: ε in [0, 1). Higher: less confident predictions.
        is_live: False for forgotten classes, which get no part, shape (K,).
        log_prior: log π, shape (K,); ``None``: no prior.

    Returns:
        Shape (K,), with the sum ε.

    Source: Szegedy et al., "Rethinking the Inception Architecture for Computer Vision", CVPR 2016,
    Sec. 7.
    """
    parts = is_live.float() if log_prior is None else is_live * log_prior.exp()
    return smoothing * parts / parts.sum()


def new_class_cross_entropy(logits: Tensor, labels: Tensor, num_old: int) -> Tensor:
    """Mean cross-entropy among the new logits, CE(z[:, K_old:], y − K_old).

    Images of old classes have no target among the new logits and are left out of the mean
    (methods/finetune.py).

    Args:
        logits: z, shape (B, K).
        labels: class indices, shape (B,).
        num_old: outputs of old classes, the first ones.

    Returns:
        Scalar; 0 for a batch without an image of a new class.
    """
    is_new = labels >= num_old
    targets = torch.where(is_new, labels - num_old, 0)
    losses = F.cross_entropy(logits[:, num_old:], targets, reduction="none")
    return torch.where(is_new, losses, 0.0).sum() / is_new.sum().clamp_min(1)


def auxiliary_labels(labels: Tensor, num_old: int) -> Tensor:
    """Targets of the auxiliary head: 0 for any old class, y − K_old + 1 for a new class.

    Args:
        labels: class indices, shape (B,).
        num_old: K_old.

    Returns:
        Targets in 0..K_new, shape (B,).

    Reference:
        methods/der.py.
    """
    return (labels - num_old + 1).clamp_min(0)
