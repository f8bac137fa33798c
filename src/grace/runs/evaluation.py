"""The accuracies of predictors on test images of all seen classes, with and without the task."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from grace.base.errors import GraceError
from grace.runs import metrics
from grace.runs.model import ClassifierRecord, TaskAwareRecord


def compare_predictions(
    scores: Mapping[str, Tensor], labels: Tensor, task_sizes: Sequence[int]
) -> tuple[dict[str, ClassifierRecord], tuple[tuple[int, ...], ...] | None]:
    """Measure every predictor on test images of all seen classes.

    The task-aware accuracy, for which the task of each image is given, uses the same scores.

    Args:
        scores: (N, K) by predictor, the primary one first.
        labels: true class indices, int64 (N,).
        task_sizes: number of new classes of each seen task; they sum to K.

    Returns:
        The accuracies of each predictor, and the confusion matrix of the primary one: test images
        of each class (row) by predicted class (column).
    """
    true, num_old = labels.tolist(), sum(task_sizes[:-1])

    def confusion(predictions: Tensor) -> list[list[int]]:
        return metrics.confusion_matrix(true, predictions.tolist(), sum(task_sizes))

    classifiers: dict[str, ClassifierRecord] = {}
    primary: tuple[tuple[int, ...], ...] | None = None
    for name, values in scores.items():
        found = confusion(values.argmax(dim=1))
        task_aware = confusion(task_aware_predictions(values, labels, task_sizes))
        old, new = metrics.old_new_accuracy(found, num_old)
        classifiers[name] = ClassifierRecord(
            all=metrics.overall_accuracy(found),
            old=old,
            new=new,
            per_task=tuple(metrics.per_task_accuracy(found, task_sizes)),
            task_aware=TaskAwareRecord(
                all=metrics.overall_accuracy(task_aware),
                per_task=tuple(metrics.per_task_accuracy(task_aware, task_sizes)),
            ),
        )
        primary = primary or tuple(tuple(row) for row in found)
    return classifiers, primary


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
