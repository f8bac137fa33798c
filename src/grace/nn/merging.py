"""Merge two backbones by averaging: the student's weights at the start of Compress.

The weight of the mergeable backbone is the paper's Eqs. 5 to 7.
"""

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from grace.base.errors import GraceError
from grace.nn.backbone import Backbone
from grace.nn.expandable import copy_of


def preservation(num_merge_classes: int, num_new_classes: int) -> float:
    """Preservation factor P = |Y_merge| / (|Y_merge| + |Y_t|) (Eq. 5), in (0, 1].

    Args:
        num_merge_classes: classes the mergeable backbone was trained to represent, at least 1.
        num_new_classes: new classes of this task.
    """
    assert num_merge_classes >= 1
    assert num_new_classes >= 0
    return num_merge_classes / (num_merge_classes + num_new_classes)


def bias(images_per_new_class: int, images_per_old_class: int) -> float:
    """Bias factor B = n_new / (n_new + n_old) (Eq. 6), in (0, 1].

    Args:
        images_per_new_class: mean number of images of a new class, floored, at least 1. With more,
            B rises and the student stays closer to the mergeable backbone.
        images_per_old_class: exemplars in memory divided by old classes, floored. With more, B
            falls.
    """
    assert images_per_new_class >= 1
    assert images_per_old_class >= 0
    return images_per_new_class / (images_per_new_class + images_per_old_class)


def merge_weight(preservation: float, bias: float, gamma: float) -> float:
    """Weight w = ((P^γ + B^γ) / 2)^(1/γ) of the mergeable backbone (Eq. 7), between P and B.

    Args:
        preservation: P in (0, 1].
        bias: B in (0, 1].
        gamma: γ > 0. The higher, the closer w is to the larger of P and B.
    """
    return float(((preservation**gamma + bias**gamma) / 2) ** (1 / gamma))


@torch.no_grad()
def merge_backbones(mergeable: Backbone, provisional: Backbone, weight: float) -> Backbone:
    """Average the parameters of two backbones, ``φ = w·φ_merge + (1 − w)·φ_prov`` (paper Eq. 8).

    Batch-norm running statistics start afresh (mean 0, variance 1): neither backbone's fit the
    average, and they settle while the student trains (docs/how-grace-works.md). Other buffers,
    modes and ``requires_grad`` flags come from the mergeable backbone.

    Args:
        mergeable: the backbone weighted by w; not changed.
        provisional: the backbone weighted by 1 − w; not changed.
        weight: w in [0, 1]. Higher: the student is closer to the mergeable backbone.

    Returns:
        A new backbone. Two equal backbones give exactly their parameters.

    Raises:
        GraceError: if the backbones' parameters differ in names or shapes.
    """
    assert 0.0 <= weight <= 1.0
    _refuse_unlike(mergeable, provisional)
    merged = copy_of(mergeable)
    others = dict(provisional.named_parameters())
    for name, parameter in merged.named_parameters():
        parameter.copy_(torch.lerp(others[name].to(parameter), parameter, weight))
    for module in merged.modules():
        if isinstance(module, _BatchNorm):
            module.reset_running_stats()
    return merged


def _refuse_unlike(mergeable: nn.Module, provisional: nn.Module) -> None:
    first = {name: tuple(value.shape) for name, value in mergeable.named_parameters()}
    second = {name: tuple(value.shape) for name, value in provisional.named_parameters()}
    for name in [*first, *second]:
        if first.get(name) != second.get(name):
            raise GraceError(
                f"backbones cannot be merged: parameter '{name}' is {first.get(name, 'absent')} "
                f"in one and {second.get(name, 'absent')} in the other",
                "use the same backbone in all tasks",
            )
