"""Numbers about a finished stream, from plain lists; percent in, percent out, never rounded.

``R[t][i]`` is the accuracy (%) after task t on the test images of task i's classes, A_t the one on
all classes seen by then, T the number of tasks (docs/protocols.md#metrics). A number is ``None``
if a task that it needs was not tested: joint training may skip all tasks but the last.
"""

from collections.abc import Sequence
from statistics import fmean

Matrix = list[list[float | None]]


def accuracy_matrix(rows: Sequence[Sequence[float | None] | None]) -> Matrix:
    """Arrange the per-task accuracies after each task as a square matrix.

    Args:
        rows: the accuracies (%) after task t on the classes of each of tasks 1..t; ``None``: task
            t was not evaluated. A task without a new class has ``None`` in its column.

    Returns:
        The T×T matrix R; ``None`` above the diagonal and in missing rows.
    """
    return [[*(row or ()), *[None] * (len(rows) - len(row or ()))] for row in rows]


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
