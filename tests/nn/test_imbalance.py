import math

import pytest
import torch

from grace.nn.heads import MASKED
from grace.nn.losses.balance import (
    distribution_aware_distillation,
    log_prior,
    lost_direction,
    lost_evenness,
)
from grace.nn.losses.classification import cross_entropy
from support.typed import present


def test_log_prior_by_hand() -> None:
    expected = [math.log(1 / 4), math.log(3 / 4)]
    assert log_prior(torch.tensor([1, 3])).tolist() == pytest.approx(expected)
    # A class without images counts as one of one: (1, 1, 2) of 4.
    expected = [math.log(1 / 4), math.log(1 / 4), math.log(1 / 2)]
    assert log_prior(torch.tensor([0, 1, 2])).tolist() == pytest.approx(expected)


def test_lost_direction_by_hand() -> None:
    # p = (3, 4)/7, whose length is 5/7.
    assert lost_direction(torch.tensor([3, 4])).tolist() == pytest.approx([0.6, 0.8])
    assert lost_direction(torch.tensor([0, 9])).tolist() == [0.0, 1.0]
    assert lost_direction(torch.tensor([0, 0])).tolist() == [0.0, 0.0]
    assert len(lost_direction(torch.tensor([], dtype=torch.int64))) == 0


@pytest.mark.parametrize("lost", [[5, 5, 5], [0, 0], [7], [0], []])
def test_lost_evenness_is_one_where_nothing_differs(lost: list[int]) -> None:
    assert float(lost_evenness(torch.tensor(lost, dtype=torch.int64))) == pytest.approx(1, abs=1e-7)


# T = 2: the teacher is (3, 1)/4, the student (4, 1)/5.
TEACHER = torch.tensor([[2 * math.log(3), 0.0]])
STUDENT = torch.tensor([[2 * math.log(4), 0.0]])
PLAIN = -(0.75 * math.log(0.8) + 0.25 * math.log(0.2))


def test_even_losses_leave_plain_distillation() -> None:
    found = distribution_aware_distillation(
        STUDENT, TEACHER, torch.tensor([0.6, 0.8]), torch.tensor(1.0), 2.0
    )
    assert float(found) == pytest.approx(PLAIN, abs=1e-6)


def test_a_class_that_lost_nothing_is_not_distilled_by_the_second_term() -> None:
    student = STUDENT.clone().requires_grad_(True)
    loss = distribution_aware_distillation(
        student, TEACHER, torch.tensor([0.0, 0.5]), torch.tensor(0.0), 2.0
    )
    loss.backward()
    # The mixed logits are (2 ln 3, 0): the teacher's own, where the gradient is 0 for both.
    assert present(student.grad).tolist() == [[0.0, pytest.approx(0.0, abs=1e-7)]]
    student = torch.tensor([[2 * math.log(4), 4 * math.log(3)]], requires_grad=True)
    loss = distribution_aware_distillation(
        student, TEACHER, torch.tensor([0.0, 0.5]), torch.tensor(0.0), 2.0
    )
    loss.backward()
    # Mixed (2 ln 3, 2 ln 3), even: (σ_2 − ¼)·p_2/T = ¼·½/2.
    assert present(student.grad).tolist() == [[0.0, pytest.approx(1 / 16, abs=1e-6)]]


def test_a_masked_class_is_finite_in_float16() -> None:
    logits = torch.tensor([[1.0, MASKED, 2.0]], dtype=torch.float16, requires_grad=True)
    prior = log_prior(torch.tensor([50, 0, 500]))
    loss = cross_entropy(logits, torch.tensor([2]), prior)
    loss = loss + distribution_aware_distillation(
        logits, logits.detach(), torch.tensor([1.0, 0.0, 0.0]), torch.tensor(0.3), 2.0
    )
    loss.backward()
    assert math.isfinite(float(loss.detach()))
    assert bool(present(logits.grad).isfinite().all())
    assert float(present(logits.grad)[0, 1]) == 0.0
