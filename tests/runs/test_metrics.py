import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.runs import metrics

# By hand: R over three tasks, and what docs/protocols.md#metrics makes of it.
ROWS = [[90.0], [60.0, 80.0], [70.0, 50.0, 95.0]]


def test_forgetting_and_backward_transfer_by_hand() -> None:
    matrix = metrics.accuracy_matrix(ROWS)
    # (max(90, 60, 70) - 70 + max(80, 50) - 50) / 2 = (20 + 30) / 2
    assert metrics.forgetting(matrix) == pytest.approx(25.0)
    # (70 - 90 + 50 - 80) / 2
    assert metrics.backward_transfer(matrix) == pytest.approx(-25.0)
    # Task 1 recovers fully after a dip: nothing forgotten, though transfer compares with R[1, 1].
    recovered = metrics.accuracy_matrix([[50.0], [40.0, 80.0], [70.0, 80.0, 1.0]])
    assert metrics.forgetting(recovered) == 0.0
    assert metrics.backward_transfer(recovered) == pytest.approx(10.0)


def test_single_task_forgets_nothing_known() -> None:
    matrix = metrics.accuracy_matrix([[88.0]])
    assert (metrics.forgetting(matrix), metrics.backward_transfer(matrix)) == (None, None)
    assert metrics.average([88.0]) == 88.0
    assert metrics.average([]) is None


def test_joint_at_the_last_task_only_has_a_last_and_nothing_else() -> None:
    matrix = metrics.accuracy_matrix([None, None, [80.0, 81.0, 82.0]])
    assert matrix[0] == [None, None, None]
    assert (metrics.average([None, None, 81.0]), metrics.forgetting(matrix)) == (None, None)
    assert metrics.backward_transfer(matrix) is None


def test_a_task_without_new_classes_has_no_column() -> None:
    matrix = metrics.accuracy_matrix([[90.0], [85.0, None], [80.0, None, 70.0]])
    assert metrics.forgetting(matrix) == pytest.approx(10.0)


PERCENT = st.floats(0, 100)


@given(st.integers(2, 6).flatmap(
    lambda size: st.tuples(*(st.lists(PERCENT, min_size=t, max_size=t) for t in range(1, size + 1)))
))  # fmt: skip
def test_ranges_and_the_bound_between_the_two(rows: tuple[list[float], ...]) -> None:
    matrix = metrics.accuracy_matrix(rows)
    forgetting, transfer = metrics.forgetting(matrix), metrics.backward_transfer(matrix)
    assert forgetting is not None
    assert transfer is not None
    assert 0 <= forgetting <= 100
    assert -100 <= transfer <= 100
    # The best accuracy is at least the first one: forgetting ≥ −BWT.
    assert forgetting >= -transfer - 1e-9
