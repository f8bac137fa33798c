"""Classification among a task's new classes, as Finetune and EWC learn them."""

import warnings

from torch import Tensor

from grace.data.scenario import Task
from grace.engine.phase import Loss
from grace.objectives.classification import new_class_cross_entropy


def warn_of_one_class(task: Task) -> None:
    """Say so when a later task's only new class has no other to be compared with.

    The softmax over one logit is 1: neither loss nor gradient.
    """
    if task.num_new_classes == 1:
        warnings.warn(
            f"task {task.number} has one new class and this method compares new classes with each "
            "other only: it is not learnt",
            stacklevel=2,
        )


def new_class_loss(logits: Tensor, labels: Tensor, num_old: int) -> Loss:
    """Mean over a batch's images of new classes, as a loss that says how many they are.

    Args:
        logits: z, shape (B, K).
        labels: class indices, shape (B,).
        num_old: K_old.
    """
    value = new_class_cross_entropy(logits, labels, num_old)
    return Loss(value, num_images=(labels >= num_old).sum())
