"""The accuracies of predictors on test images of all seen classes, with and without the task."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from grace.runs.model import ClassifierRecord, TaskAwareRecord


def compare_predictions(
    scores: Mapping[str, Tensor], labels: Tensor, task_sizes: Sequence[int]
) -> tuple[dict[str, ClassifierRecord], list[list[int]] | None]:
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
    classifiers, confusion = {}, None
    for name, values in scores.items():
        predictions = values.argmax(dim=1)
        told = accuracies(task_aware_predictions(values, labels, task_sizes), labels, task_sizes)
        classifiers[name] = ClassifierRecord(
            **accuracies(predictions, labels, task_sizes),
            task_aware=TaskAwareRecord(all=told["all"], per_task=told["per_task"]),
        )
        confusion = confusion or confusion_matrix(predictions, labels, values.shape[1])
    return classifiers, confusion


def accuracies(predictions: Tensor, labels: Tensor, task_sizes: Sequence[int]) -> dict[str, Any]:
    """Return the accuracy (%) on all classes, on old and new ones, and on those of each task.

    All K classes can be predicted, without masking (docs/protocols.md#classifiers). ``None``: there
    is no such class.

    Args:
        predictions: class indices, int64 (N,).
        labels: true class indices, int64 (N,).
        task_sizes: number of new classes of each seen task; they sum to K.
    """
    tasks, right = _task_of_class(task_sizes)[labels], predictions == labels
    last = len(task_sizes) - 1

    def on(chosen: Tensor) -> float:
        total = int(chosen.sum())
        return 100.0 * int(right[chosen].sum()) / total if total else 0.0

    return {
        "all": on(tasks <= last),
        "old": on(tasks < last) if any(task_sizes[:-1]) else None,
        "new": on(tasks == last) if task_sizes[-1] else None,
        "per_task": tuple(on(tasks == t) if n else None for t, n in enumerate(task_sizes)),
    }


def confusion_matrix(predictions: Tensor, labels: Tensor, num_classes: int) -> list[list[int]]:
    """Count test images by true class (rows) and predicted class (columns), K×K."""
    places = labels * num_classes + predictions
    counts = torch.bincount(places, minlength=num_classes**2)
    return [list(map(int, row)) for row in counts.view(num_classes, num_classes)]


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

    Source:
        van de Ven & Tolias 2019, arXiv:1904.07734, "task-incremental"; docs/glossary.md.
    """
    assert sum(task_sizes) == scores.shape[1], (task_sizes, scores.shape)
    task_of = _task_of_class(task_sizes)
    foreign = task_of[labels][:, None] != task_of[None, :]
    return scores.masked_fill(foreign, -torch.inf).argmax(dim=1)


def _task_of_class(task_sizes: Sequence[int]) -> Tensor:
    return torch.repeat_interleave(torch.arange(len(task_sizes)), torch.tensor([*task_sizes]))
