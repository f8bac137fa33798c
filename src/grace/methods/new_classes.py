"""Classification among a task's new classes, as Finetune and EWC learn them."""

from torch import Tensor

from grace.engine.phase import Loss
from grace.objectives.classification import new_class_cross_entropy


def new_class_loss(logits: Tensor, labels: Tensor, num_old: int) -> Loss:
    """Mean over a batch's images of new classes, as a loss that says how many they are.

    Args:
        logits: z, shape (B, K).
        labels: class indices, shape (B,).
        num_old: K_old.
    """
    value = new_class_cross_entropy(logits, labels, num_old)
    return Loss(value, over=(labels >= num_old).sum())
