"""Numbers about a finished stream, from plain lists; percent in, percent out, never rounded.

``R[t][i]`` is the accuracy (%) after task t on the test images of task i's classes, A_t the one on
all classes seen by then, T the number of tasks (docs/protocols.md#metrics). A number is ``None``
if a task that it needs was not tested: joint training may skip all tasks but the last.
"""

from collections.abc import Sequence
from itertools import accumulate
from statistics import fmean

from grace.base.errors import GraceError

Matrix = list[list[float | None]]


def accuracy_matrix(rows: Sequence[Sequence[float | None] | None]) -> Matrix:
    """Arrange the per-task accuracies after each task as a square matrix.

    Args:
        rows: the accuracies (%) after task t on the classes of each of tasks 1..t; ``None``: task
            t was not evaluated. A task without a new class has ``None`` in its column.

    Returns:
        The T×T matrix R; ``None`` above the diagonal and in missing rows.

    Raises:
        GraceError: row t does not hold t values.
    """
    size = len(rows)
    matrix: Matrix = []
    for number, row in enumerate(rows, start=1):
        if row is not None and len(row) != number:
            raise GraceError(
                f"after task {number} there are {len(row)} per-task accuracies instead of {number}"
            )
        known = list(row) if row is not None else []
        matrix.append([*known, *[None] * (size - len(known))])
    return matrix


def last(accuracies: Sequence[float | None]) -> float | None:
    """Return *Last* = A_T from A_1..A_T (docs/protocols.md#metrics)."""
    return accuracies[-1] if accuracies else None


def average(accuracies: Sequence[float | None]) -> float | None:
    """Return *Avg* = mean of A_1..A_T, task 1 included (docs/protocols.md#metrics)."""
    known = [value for value in accuracies if value is not None]
    return fmean(known) if known and len(known) == len(accuracies) else None


def forgetting(matrix: Sequence[Sequence[float | None]]) -> float | None:
    """Return the mean over i < T of max_t R[t,i] − R[T,i], in 0..100 (docs/protocols.md#metrics).

    ``None`` for a single task.
    """
    columns = _earlier_columns(matrix)
    return fmean(max(column) - column[-1] for column in columns) if columns else None


def backward_transfer(matrix: Sequence[Sequence[float | None]]) -> float | None:
    """Return the mean over i < T of R[T,i] − R[i,i], in −100..100; negative where it forgets.

    Lopez-Paz & Ranzato 2017, Eq. 3. ``None`` for a single task.
    """
    columns = _earlier_columns(matrix)
    return fmean(column[-1] - column[0] for column in columns) if columns else None


def _earlier_columns(matrix: Sequence[Sequence[float | None]]) -> list[list[float]]:
    """Return R[i:, i] of every i < T with new classes; an empty list if a value is missing."""
    columns = []
    for task in range(len(matrix) - 1):
        column = [row[task] for row in matrix[task:]]
        known = [value for value in column if value is not None]
        if known and len(known) < len(column):
            return []
        if known:
            columns.append(known)
    return columns


def confusion_matrix(
    labels: Sequence[int], predictions: Sequence[int], num_classes: int
) -> list[list[int]]:
    """Count test images by true class (rows) and predicted class (columns), K×K.

    Args:
        labels: true class indices.
        predictions: predicted class indices, as many.
        num_classes: K.
    """
    counts = [[0] * num_classes for _ in range(num_classes)]
    for label, prediction in zip(labels, predictions, strict=True):
        counts[label][prediction] += 1
    return counts


def per_task_accuracy(
    confusion: Sequence[Sequence[int]], task_sizes: Sequence[int]
) -> list[float | None]:
    """Return the accuracy (%) on the classes of each seen task, on true task boundaries.

    ``None`` for a task without a new class.

    Args:
        confusion: counts of test images, K×K, classes in class order.
        task_sizes: number of new classes of each seen task; they sum to K.

    Raises:
        GraceError: the sizes do not sum to K.
    """
    if sum(task_sizes) != len(confusion):
        raise GraceError(
            f"the tasks hold {sum(task_sizes)} classes, the confusion matrix {len(confusion)}"
        )
    return [
        _accuracy(confusion, range(end - size, end)) if size else None
        for end, size in zip(accumulate(task_sizes), task_sizes, strict=True)
    ]


def old_new_accuracy(
    confusion: Sequence[Sequence[int]], num_old: int
) -> tuple[float | None, float | None]:
    """Return the accuracies (%) on old classes (the first ``num_old``) and on new ones.

    All K classes can be predicted, without masking (docs/protocols.md#classifiers); ``None``: there
    is no such class.
    """
    old, new = range(num_old), range(num_old, len(confusion))
    return (
        _accuracy(confusion, old) if old else None,
        _accuracy(confusion, new) if new else None,
    )


def overall_accuracy(confusion: Sequence[Sequence[int]]) -> float:
    """Return A_t (%), the share of correct predictions (docs/protocols.md#metrics)."""
    return _accuracy(confusion, range(len(confusion)))


def _accuracy(confusion: Sequence[Sequence[int]], classes: range) -> float:
    total = sum(sum(confusion[index]) for index in classes)
    right = sum(confusion[index][index] for index in classes)
    return 100.0 * right / total if total else 0.0


def memory_aligned_size(
    reference_parameters: int, parameters: int, image_bytes: int, base_memory: int = 2000
) -> int:
    """Return the number of exemplars with which a smaller model costs what the reference costs.

    ``base_memory + floor((reference_parameters − parameters) · 4 / image_bytes)``, see
    docs/protocols.md#memory-aligned-counts.

    Args:
        reference_parameters: backbone parameters of the largest method (DER), 4 bytes each.
        parameters: backbone parameters of this method.
        image_bytes: bytes of one raw image (3,072 for CIFAR, 150,528 at 224 pixels).
        base_memory: number of exemplars that every method has.

    Raises:
        GraceError: the model is larger than the reference, or an image has no bytes.
    """
    if image_bytes < 1:
        raise GraceError(f"image_bytes is {image_bytes}: an image has at least one byte")
    if parameters > reference_parameters:
        raise GraceError(
            f"the model has {parameters} parameters, more than the reference's "
            f"{reference_parameters}",
            "take the larger one as reference",
        )
    return base_memory + (reference_parameters - parameters) * 4 // image_bytes
