"""Classification losses that several methods share."""

from torch import Tensor

from grace.engine.phase import Batch, Loss
from grace.objectives.classification import cross_entropy, new_class_cross_entropy


def classification(batch: Batch) -> dict[str, Loss]:
    """Cross-entropy of the part "head" over all classes: the objective of a plain phase."""
    return {"classification": Loss(cross_entropy(batch["head"], batch.labels))}


def new_class_loss(logits: Tensor, labels: Tensor, num_old: int) -> Loss:
    """Cross-entropy among the new classes: a mean over a batch's images of these classes.

    Args:
        logits: z, shape (B, K).
        labels: class indices, shape (B,).
        num_old: outputs of old classes, the first ones.
    """
    value = new_class_cross_entropy(logits, labels, num_old)
    return Loss(value, over=(labels >= num_old).sum())
