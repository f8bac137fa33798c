"""Classification losses that several methods share."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from grace.data.images import LabelledImages
from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss, Objective
from grace.methods.module_factory import ModuleFactory
from grace.nn.losses.balance import log_prior
from grace.nn.losses.classification import cross_entropy, new_class_cross_entropy, shared_target
from grace.settings.method import AnyMethodSettings, SmoothingSettings

ClassLoss = Callable[[Tensor, Tensor], Tensor]
"""Maps logits (B, K) and class indices (B,) to a scalar."""


def classification(batch: Batch) -> dict[str, Loss]:
    """Cross-entropy of the part "head" over all classes: the objective of a plain phase."""
    return {"classification": Loss(cross_entropy(batch["head"], batch.labels))}


def plain_objective(
    settings: AnyMethodSettings, factory: ModuleFactory, task: Task, data: LabelledImages
) -> Objective:
    """Make the objective of a plain phase: ``class_loss``, with its arguments, of "head"."""
    loss = class_loss(settings, factory, task, data)
    if loss is cross_entropy:
        return classification  # A plain function: phases with it can be shared by their content.

    def objective(batch: Batch) -> dict[str, Loss]:
        return {"classification": Loss(loss(batch["head"], batch.labels))}

    return objective


def class_loss(
    settings: AnyMethodSettings, factory: ModuleFactory, task: Task, data: LabelledImages
) -> ClassLoss:
    """Make the cross-entropy over all classes, with the settings' class prior and label smoothing.

    Args:
        settings: of the method.
        factory: gives the device.
        task: its K classes.
        data: the phase's images.

    Returns:
        ``cross_entropy`` itself if there is nothing to add.
    """
    prior = class_prior(settings, factory, task, data)
    smoothing = settings.label_smoothing if isinstance(settings, SmoothingSettings) else 0.0
    shared = None
    if smoothing:
        is_live = torch.zeros(task.num_classes, dtype=torch.bool)
        is_live[task.remembered_classes] = True
        shared = shared_target(smoothing, is_live.to(factory.device.torch_device), prior)
    if prior is None and shared is None:
        return cross_entropy
    return partial(cross_entropy, log_prior=prior, shared=shared)


def class_prior(
    settings: AnyMethodSettings, factory: ModuleFactory, task: Task, data: LabelledImages
) -> Tensor | None:
    """Compute the prior log π (K,) that a phase's cross-entropy adds to the logits.

    The arguments are those of ``class_loss``.

    Returns:
        ``None`` without a ``class_prior``, and where all classes have equally many images.
    """
    if getattr(settings, "class_prior", "none") == "none":
        return None
    counts = torch.bincount(data.labels, minlength=task.num_classes)
    if len(counts[task.remembered_classes].unique()) == 1:
        return None
    return log_prior(counts).to(factory.device.torch_device)


def new_class_loss(logits: Tensor, labels: Tensor, num_old: int) -> Loss:
    """Cross-entropy among the new classes: a mean over a batch's images of these classes.

    Args:
        logits: z, shape (B, K).
        labels: class indices, shape (B,).
        num_old: outputs of old classes, the first ones.
    """
    value = new_class_cross_entropy(logits, labels, num_old)
    return Loss(value, over=(labels >= num_old).sum())
