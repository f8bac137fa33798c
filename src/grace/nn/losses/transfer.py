"""Transfer from a classifier of the new classes alone. Shapes: B images, K classes, K_new new."""

import torch
import torch.nn.functional as F
from torch import Tensor

from grace.nn.losses.classification import cross_entropy, new_class_cross_entropy


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
