"""Measure an update on held-out images: the same images before and after it.

Shapes: N images, K classes.
"""

from collections.abc import Set

import torch
from torch import Tensor

from grace.learner.accuracies import Accuracies, ClassAccuracy


def compared(
    before: Tensor | None,
    after: Tensor | None,
    labels: Tensor,
    old: Set[int],
    *,
    teacher: float | None = None,
    student: float | None = None,
) -> Accuracies:
    """Compare the results of held-out images before and after an update.

    Args:
        before: (M,) ``True`` for each image of an old class that was right, in the order of
            ``labels``; ``None``: there are no such images, or nothing could predict them.
        after: (N,) ``True`` for each image that is right; ``None``: there are no images.
        labels: class indices (N,), ascending.
        old: classes known before the update.
        teacher: accuracy before compression, if there was one.
        student: accuracy after it.
    """
    if after is None:
        return Accuracies(teacher=teacher, student=student)
    is_old = torch.isin(labels, torch.tensor(sorted(old), dtype=torch.int64))
    earlier, is_measured = torch.zeros_like(after), before is not None
    if before is not None:
        earlier[is_old] = before
    classes = []
    for index in labels.unique().tolist():
        own = labels == index
        was_known = is_measured and index in old
        classes.append(
            ClassAccuracy(
                index=index,
                num=int(own.sum()),
                before=int(earlier[own].sum()) if was_known else None,
                after=int(after[own].sum()),
                lost=int((earlier & ~after)[own].sum()) if was_known else 0,
            )
        )
    return Accuracies(
        old_before=_share(earlier[is_old]) if is_measured else None,
        old_after=_share(after[is_old]),
        new_after=_share(after[~is_old]),
        num_old=int(is_old.sum()),
        num_new=int((~is_old).sum()),
        teacher=teacher,
        student=student,
        classes=tuple(classes),
    )


def _share(are_right: Tensor) -> float | None:
    return float(are_right.double().mean()) if len(are_right) else None
