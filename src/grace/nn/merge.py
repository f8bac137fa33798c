"""Importance-aware weight of the mergeable backbone in the student (the paper's Eqs. 5 to 7)."""


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
