"""Claims of the paper: holds, fails, within noise."""

import math

import numpy as np
import pytest
import scipy.stats

from grace.studies.claims import judge


@pytest.mark.parametrize(
    ("differences", "slack", "mean", "error", "verdict"),
    [
        # d = 2, sd = 1, se = 1/√3 = 0.57735; 2 se = 1.1547 < 2.
        ([1.0, 2.0, 3.0], 0, 2.0, 1 / math.sqrt(3), "holds"),
        ([-1.0, -2.0, -3.0], 0, -2.0, 1 / math.sqrt(3), "fails"),
        # sd = 0.8/√2, se = 0.4: slack moves the mean and not the error.
        ([-1.4, -0.6], 0, -1.0, 0.4, "fails"),
        ([-1.4, -0.6], 3, 2.0, 0.4, "holds"),
        ([0.0, 2.0], 0, 1.0, 1.0, "within noise"),
        ([0.0, -2.0], 0, -1.0, 1.0, "within noise"),
        ([1.0, 3.0], 0, 2.0, 1.0, "within noise"),  # d = 2 = 2 se
        ([1.0, 2.9], 0, 1.95, 0.95, "holds"),
        ([-1.0, -2.9], 0, -1.95, 0.95, "fails"),
        ([0.0, 0.0], 0, 0.0, 0.0, "within noise"),  # No difference at all.
        # One seed knows no noise. Table 1, CIFAR-100 b50i2, Last, and its slack of 1.0.
        ([-0.86], 0, -0.86, None, "fails"),
        ([-0.86], 1, 0.14, None, "holds"),
        ([0.0], 0, 0.0, None, "holds"),
    ],
)
def test_verdicts_by_hand(
    differences: list[float], slack: float, mean: float, error: float | None, verdict: str
) -> None:
    judged = judge(differences, slack)
    assert (judged.count, judged.verdict) == (len(differences), verdict)
    assert judged.mean == pytest.approx(mean)
    assert judged.standard_error == (None if error is None else pytest.approx(error))


def test_a_claim_is_judged_by_students_t() -> None:
    differences = np.random.default_rng(6).normal(1, 9, 5)
    judged = judge(differences.tolist())
    assert judged.standard_error == pytest.approx(float(scipy.stats.sem(differences)))
    student = scipy.stats.ttest_1samp(differences, 0).statistic
    assert judged.mean / judged.standard_error == pytest.approx(float(student))
