import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, balanced_accuracy_score, confusion_matrix

from grace.runs import metrics

# By hand: R over three tasks, and what docs/protocols.md#metrics makes of it.
ROWS = [[90.0], [60.0, 80.0], [70.0, 50.0, 95.0]]


def test_matrix_on_true_boundaries() -> None:
    matrix = metrics.accuracy_matrix(ROWS)
    assert matrix == [[90.0, None, None], [60.0, 80.0, None], [70.0, 50.0, 95.0]]
    with pytest.raises(ValueError, match="after task 2 there are 1"):
        metrics.accuracy_matrix([[90.0], [60.0]])


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


def test_last_and_average() -> None:
    # GRACE's §2 convention: Avg includes task 1.
    assert metrics.last([90.0, 70.0, 71.0]) == 71.0
    assert metrics.average([90.0, 70.0, 71.0]) == pytest.approx(77.0)


def test_single_task_forgets_nothing_known() -> None:
    matrix = metrics.accuracy_matrix([[88.0]])
    assert (metrics.forgetting(matrix), metrics.backward_transfer(matrix)) == (None, None)
    assert metrics.average([88.0]) == metrics.last([88.0]) == 88.0
    assert (metrics.last([]), metrics.average([])) == (None, None)


def test_joint_at_the_last_task_only_has_a_last_and_nothing_else() -> None:
    matrix = metrics.accuracy_matrix([None, None, [80.0, 81.0, 82.0]])
    assert matrix[0] == [None, None, None]
    assert metrics.last([None, None, 81.0]) == 81.0
    assert (metrics.average([None, None, 81.0]), metrics.forgetting(matrix)) == (None, None)
    assert metrics.backward_transfer(matrix) is None


def test_a_task_without_new_classes_has_no_column() -> None:
    matrix = metrics.accuracy_matrix([[90.0], [85.0, None], [80.0, None, 70.0]])
    assert metrics.forgetting(matrix) == pytest.approx(10.0)


# Uneven tasks of 2, 1 and 2 classes; rows are true classes.
CONFUSION = [
    [8, 2, 0, 0, 0],
    [0, 5, 0, 0, 5],
    [0, 0, 10, 10, 0],
    [0, 0, 0, 3, 1],
    [0, 0, 0, 0, 6],
]


def test_accuracies_from_confusion_by_hand() -> None:
    assert metrics.per_task_accuracy(CONFUSION, [2, 1, 2]) == [
        pytest.approx(100 * 13 / 20),
        pytest.approx(50.0),
        pytest.approx(90.0),
    ]
    assert metrics.per_task_accuracy(CONFUSION, [2, 0, 3])[1] is None
    # Weighted by images, not by classes: 32 of 50.
    assert metrics.overall_accuracy(CONFUSION) == pytest.approx(64.0)
    old, new = metrics.old_new_accuracy(CONFUSION, 3)
    assert old == pytest.approx(100 * 23 / 40)
    assert new == pytest.approx(90.0)
    assert metrics.old_new_accuracy(CONFUSION, 0)[0] is None
    assert metrics.old_new_accuracy(CONFUSION, 5)[1] is None
    with pytest.raises(ValueError, match="the tasks hold 4 classes"):
        metrics.per_task_accuracy(CONFUSION, [2, 2])


def test_confusion_counts() -> None:
    assert metrics.confusion_matrix([0, 0, 1, 2], [0, 1, 1, 0], 3) == [
        [1, 1, 0],
        [0, 1, 0],
        [1, 0, 0],
    ]


@pytest.mark.parametrize(
    ("reference", "kept", "exemplars"),
    [(20, 1, 13466), (20, 10, 8035), (10, 1, 7431), (10, 5, 5017), (20, 20, 2000)],
)
def test_memory_aligned_sizes_of_the_paper(reference: int, kept: int, exemplars: int) -> None:
    one = 463_504  # docs/protocols.md#resnet-32; CIFAR images have 3,072 bytes
    assert metrics.memory_aligned_size(reference * one, kept * one, 3072, 2000) == exemplars


@pytest.mark.parametrize(
    ("reference", "kept", "exemplars"), [(20, 1, 7639), (10, 1, 4671), (20, 12, 4374)]
)
def test_memory_aligned_sizes_on_imagenet(reference: int, kept: int, exemplars: int) -> None:
    one = 11_168_832  # docs/protocols.md#memory-aligned-counts: ResNet-18 with the 3×3 stem
    assert metrics.memory_aligned_size(reference * one, kept * one, 150_528) == exemplars


def test_memory_alignment_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="take the larger one"):
        metrics.memory_aligned_size(1, 2, 3072)
    with pytest.raises(ValueError, match="at least one byte"):
        metrics.memory_aligned_size(2, 1, 0)


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


def test_accuracies_are_scikit_learns() -> None:
    draws = np.random.default_rng(3)
    labels = draws.integers(0, 6, 300)
    predictions = np.where(draws.random(300) < 0.6, labels, draws.integers(0, 6, 300))
    confusion = metrics.confusion_matrix(labels.tolist(), predictions.tolist(), 6)
    assert confusion == confusion_matrix(labels, predictions).tolist()

    def among(low: int, high: int) -> float:
        own = (labels >= low) & (labels < high)
        return 100 * float(accuracy_score(labels[own], predictions[own]))

    assert metrics.overall_accuracy(confusion) == pytest.approx(among(0, 6))
    assert metrics.old_new_accuracy(confusion, 2) == pytest.approx((among(0, 2), among(2, 6)))
    by_task = [among(0, 3), among(3, 4), among(4, 6)]
    assert metrics.per_task_accuracy(confusion, [3, 1, 2]) == pytest.approx(by_task)


def test_accuracies_of_parts_make_the_whole() -> None:
    """Weighted by images; where all classes have as many, it is their mean recall."""
    draws = np.random.default_rng(9)
    labels = np.repeat(np.arange(6), 50)
    predictions = np.where(draws.random(300) < 0.7, labels, draws.integers(0, 6, 300))
    confusion = metrics.confusion_matrix(labels.tolist(), predictions.tolist(), 6)
    whole = metrics.overall_accuracy(confusion)
    assert whole == pytest.approx(100 * balanced_accuracy_score(labels, predictions))
    old, new = metrics.old_new_accuracy(confusion, 4)
    assert old is not None
    assert new is not None
    assert whole == pytest.approx((200 * old + 100 * new) / 300)
    tasks = [own for own in metrics.per_task_accuracy(confusion, [1, 3, 2]) if own is not None]
    assert whole == pytest.approx(np.average(tasks, weights=[1, 3, 2]))


def test_streams_of_random_accuracies_against_numpy() -> None:
    square = 100 * np.random.default_rng(4).random((7, 7))
    square[np.triu_indices(7, 1)] = -np.inf
    matrix = metrics.accuracy_matrix([square[t, : t + 1].tolist() for t in range(7)])
    drops = square[:, :6].max(axis=0) - square[6, :6]
    assert metrics.forgetting(matrix) == pytest.approx(float(drops.mean()))
    transfers = square[6, :6] - np.diag(square)[:6]
    assert metrics.backward_transfer(matrix) == pytest.approx(float(transfers.mean()))
    assert metrics.average(square[6].tolist()) == pytest.approx(float(np.mean(square[6])))
