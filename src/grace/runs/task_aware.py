"""Predictions of a classifier that knows the task of each image."""

from collections.abc import Sequence

import torch
from torch import Tensor

from grace.base.errors import GraceError


def task_aware_predictions(scores: Tensor, labels: Tensor, task_sizes: Sequence[int]) -> Tensor:
    """Predict each image's class among the classes of its task only.

    ``argmax over c in C_i of z[n, c]``, where C_i are the classes that task i introduced and i is
    the task of the image's true class: all other columns count as −∞. The lowest index wins a tie.
    A forgotten class keeps its masked score. The class-incremental prediction uses all columns; an
    image that it classifies correctly is classified correctly here too.

    Args:
        scores: finite scores of a predictor, (N, K).
        labels: true class indices, int64 (N,).
        task_sizes: number of new classes of each seen task; they sum to K.

    Returns:
        Class indices, int64 (N,).

    Raises:
        GraceError: the sizes do not sum to K.

    Source:
        van de Ven & Tolias 2019, arXiv:1904.07734, "task-incremental"; docs/glossary.md.
    """
    if sum(task_sizes) != scores.shape[1]:
        raise GraceError(
            f"the tasks hold {sum(task_sizes)} classes, but {scores.shape[1]} are scored"
        )
    numbers = torch.arange(len(task_sizes))
    task_of = torch.repeat_interleave(numbers, torch.tensor(list(task_sizes)))
    foreign = task_of[labels][:, None] != task_of[None, :]
    return scores.masked_fill(foreign, -torch.inf).argmax(dim=1)
