"""Claims of the paper: holds, fails, within noise."""

import math

import numpy as np
import pytest
import scipy.stats

from grace.studies.claims import judge


def test_three_seeds_by_hand() -> None:
    # d = 2, sd = 1, se = 1/√3 = 0.57735; 2 se = 1.1547 < 2.
    judged = judge([1.0, 2.0, 3.0])
    assert (judged.mean, judged.count, judged.verdict) == (2.0, 3, "holds")
    assert judged.standard_error == pytest.approx(1 / math.sqrt(3))
    assert judge([-1.0, -2.0, -3.0]).verdict == "fails"


def test_slack_moves_the_mean_and_not_the_error() -> None:
    plain, eased = judge([-1.4, -0.6]), judge([-1.4, -0.6], slack=3.0)
    assert plain.mean == pytest.approx(-1.0)
    assert eased.mean == pytest.approx(2.0)
    # sd = 0.8/√2, se = 0.4: |−1| > 0.8 and 2 > 0.8.
    assert plain.standard_error == pytest.approx(0.4)
    assert eased.standard_error == pytest.approx(0.4)
    assert (plain.verdict, eased.verdict) == ("fails", "holds")


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([0.0, 2.0], "within noise"),  # d = 1, se = 1
        ([-0.5, 1.5], "within noise"),  # d = 0.5, se = 1
        ([0.0, -2.0], "within noise"),
        ([1.0, 3.0], "within noise"),  # d = 2 = 2 se
        ([1.0, 2.9], "holds"),  # d = 1.95, 2 se = 1.9
        ([-1.0, -2.9], "fails"),
        ([0.0, 0.0], "within noise"),  # No difference at all.
    ],
)
def test_two_standard_errors_are_noise(differences: list[float], verdict: str) -> None:
    assert judge(differences).verdict == verdict


def test_one_seed_knows_no_noise() -> None:
    """The paper's own numbers: Table 1, CIFAR-100 b50i2, Last, and its slack of 1.0."""
    alone = judge([-0.86])
    assert (alone.standard_error, alone.count, alone.verdict) == (None, 1, "fails")
    assert judge([-0.86], slack=1.0).verdict == "holds"
    assert judge([-0.86], slack=1.0).mean == pytest.approx(0.14)
    assert judge([0.0]).verdict == "holds"


def test_a_claim_is_judged_by_students_t() -> None:
    differences = np.random.default_rng(6).normal(1, 9, 5)
    judged = judge(differences.tolist())
    assert judged.standard_error == pytest.approx(float(scipy.stats.sem(differences)))
    student = scipy.stats.ttest_1samp(differences, 0).statistic
    assert judged.mean / judged.standard_error == pytest.approx(float(student))
