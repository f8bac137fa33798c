"""Predictions that are told the task: worked by hand, and compared with those that are not."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score
from sklearn.metrics import confusion_matrix as sklearn_confusion

from grace.nn.heads import MASKED
from grace.runs.evaluation import (
    accuracies,
    compare_predictions,
    confusion_matrix,
    task_aware_predictions,
)

SCORES = torch.tensor(
    [
        [2.0, 1.0, 0.5, 3.0, -1.0],
        [0.2, 1.4, 2.2, 2.1, 0.0],
        [0.1, 0.0, 1.0, 0.4, 1.5],
        [1.2, 0.3, 0.9, 0.8, 0.7],
    ]
)
LABELS = torch.tensor([0, 1, 4, 3])


def test_four_images_of_two_tasks_by_hand() -> None:
    # Class-incremental: 3, 2, 4, 0, one of four right.
    assert SCORES.argmax(dim=1).tolist() == [3, 2, 4, 0]
    told = task_aware_predictions(SCORES, LABELS, [2, 3])
    assert told.tolist() == [0, 1, 4, 2]
    found = accuracies(told, LABELS, [2, 3])
    assert (found["all"], found["per_task"]) == (75.0, (100.0, 50.0))


def test_every_predictor_is_measured_with_and_without_the_task() -> None:
    scores = {"linear": SCORES, "nearest_mean": SCORES.flip(1)}
    found, confusion = compare_predictions(scores, LABELS, [2, 3])
    assert [(one.all, one.task_aware.all) for one in found.values()] == [(25, 75), (0, 25)]
    assert confusion == confusion_matrix(SCORES.argmax(dim=1), LABELS, 5)
    assert compare_predictions({}, LABELS, [2, 3]) == ({}, None)


def test_accuracies_are_scikit_learns() -> None:
    draws = np.random.default_rng(3)
    labels = draws.integers(0, 6, 300)
    predictions = np.where(draws.random(300) < 0.6, labels, draws.integers(0, 6, 300))
    told, true = torch.from_numpy(predictions), torch.from_numpy(labels)
    assert confusion_matrix(told, true, 6) == sklearn_confusion(labels, predictions).tolist()

    def among(low: int, high: int) -> float:
        own = (labels >= low) & (labels < high)
        return 100 * float(accuracy_score(labels[own], predictions[own]))

    found = accuracies(told, true, [3, 1, 2])
    assert found["all"] == pytest.approx(among(0, 6))
    assert (found["old"], found["new"]) == pytest.approx((among(0, 4), among(4, 6)))
    assert found["per_task"] == pytest.approx((among(0, 3), among(3, 4), among(4, 6)))
    assert accuracies(told, true, [3, 0, 3])["per_task"][1] is None
    assert accuracies(told, true, [6])["old"] is None
    assert accuracies(told, true, [6, 0])["new"] is None


def test_scores_below_the_mask_of_other_columns_do_not_lose_to_it() -> None:
    scores = torch.tensor([[0.0, 0.0, -3e38, -2e38]])
    assert task_aware_predictions(scores, torch.tensor([2]), [2, 2]).tolist() == [3]


def test_a_forgotten_class_stays_hidden_within_its_task() -> None:
    scores = torch.tensor([[5.0, MASKED, -7.0]])
    assert task_aware_predictions(scores, torch.tensor([2]), [1, 2]).tolist() == [2]


def test_a_task_without_new_classes_has_no_column() -> None:
    scores = torch.tensor([[1.0, 2.0, 5.0]])
    assert task_aware_predictions(scores, torch.tensor([0]), [2, 0, 1]).tolist() == [1]
