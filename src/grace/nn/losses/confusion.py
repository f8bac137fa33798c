"""CREATE's losses on the scores and latents of class-wise auto-encoders.

Shapes: B images, K classes, H latent numbers of each auto-encoder.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def floored_cross_entropy(
    scores: Tensor, labels: Tensor, log_prior: Tensor | None = None, floor: float = 1e-10
) -> Tensor:
    """Cross-entropy with a floor, mean of −log(σ(e)_y + floor); at most −log(floor).

    Args:
        scores: e, shape (B, K).
        labels: y, class indices, shape (B,).
        log_prior: log π, added to the scores, shape (K,); ``None``: no prior.
        floor: added to every probability, > 0. Higher: badly classified images count less.

    Returns:
        Scalar.
    """
    scores = scores.float() if log_prior is None else scores.float() + log_prior
    probabilities = F.softmax(scores, dim=1) + floor
    return F.nll_loss(probabilities.log(), labels)


def confusion_weights(scores: Tensor, sharpness: float) -> Tensor:
    """Weigh each image by how close its two best classes are, ω = 1 + exp(−a·s).

    ``s = |e_(1) − e_(2)| / |e_(1) − e_(K)|`` compares the gap between the largest and the second
    largest score with the gap between the largest and the smallest. Where all scores are equal, or
    there is one class alone, s is 0.

    Args:
        scores: e of the classes that are compared, shape (B, K).
        sharpness: a ≥ 0. Higher: fewer images count as confused.

    Returns:
        ω in [1, 2], shape (B,), float32, without gradient.
    """
    ordered = scores.detach().float().sort(dim=1, descending=True).values
    gap = ordered[:, 0] - ordered[:, min(1, scores.shape[1] - 1)]
    span = ordered[:, 0] - ordered[:, -1]
    return 1 + torch.exp(-sharpness * gap / span.clamp_min(1e-12))


def confusion_aware_contrast(
    latents: Tensor,
    labels: Tensor,
    weights: Tensor,
    num_classes: int,
    temperature: float,
    base_temperature: float,
    floor: float = -95.0,
) -> Tensor:
    """Contrastive loss of the latents: close within a class, apart from other classes.

    With h from the auto-encoder of class c for the whole batch and unnormalised dot products::

        L_CR = (1/K) Σ_c mean_n 1[y_n = c]·(τ/τ_b)·ω_n·
               (−mean_{m≠n, y_m=c} log(exp(h_n·h_m/τ) / Σ_{j≠n} exp(h_n·h_j/τ)))

    The largest similarity of an image, that with itself included, is subtracted from all of them;
    what is then below ``floor`` becomes ``floor``. An image without another one of its class
    counts in the mean over n and adds nothing.

    Args:
        latents: h, shape (B, K', H), of the auto-encoders that the labels index.
        labels: y, class indices below K', shape (B,).
        weights: ω, shape (B,).
        num_classes: K, the divisor.
        temperature: τ > 0. Lower: the most similar images count more.
        base_temperature: τ_b > 0.
        floor: lowest exponent.

    Returns:
        Scalar, float32.
    """
    # Outside of autocast: in half precision exponents up to H/τ would be rounded to quarters.
    with torch.autocast(latents.device.type, enabled=False):
        latents = latents.float()
        # Only row n of the auto-encoder y_n matters: all other latents of an anchor are 0, and one
        # product gives (h_n·h_j) in the auto-encoder of y_n for all n and j.
        is_own = labels.unsqueeze(1) == torch.arange(latents.shape[1], device=labels.device)
        own = latents * is_own.unsqueeze(2)
        similarities = own.flatten(1) @ latents.flatten(1).T / temperature
        largest = similarities.detach().amax(dim=1, keepdim=True)
        exponents = (similarities - largest).clamp_min(floor)
        is_self = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
        is_positive = (labels.unsqueeze(1) == labels) & ~is_self
        # Not −inf, whose logarithm of a sum has no gradient where a batch has a single image.
        nothing = torch.finfo(exponents.dtype).min
        log_sums = exponents.masked_fill(is_self, nothing).logsumexp(dim=1, keepdim=True)
        logs = torch.where(is_positive, exponents - log_sums, 0.0)
        means = -logs.sum(dim=1) / is_positive.sum(dim=1).clamp_min(1)
        terms = temperature / base_temperature * weights * means
        return terms.mean() / num_classes
