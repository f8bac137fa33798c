"""Intervals and paired tests against scipy and by hand."""

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from grace.learner.gate import calibration_error, holm, sign_test, smallest_drop, wilson


@given(st.data(), st.integers(1, 400))
def test_wilson_is_scipys(data: st.DataObject, num: int) -> None:
    right = data.draw(st.integers(0, num))
    expected = scipy.stats.binomtest(right, num).proportion_ci(0.95, method="wilson")
    assert wilson(right, num) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_wilson_by_hand() -> None:
    # 8 of 10 with z = 2: z²/n = 0.4, middle 1.0, spread 2·sqrt(0.016 + 0.01), all over 1.4.
    spread = 2 * math.sqrt(0.8 * 0.2 / 10 + 4 / 400)
    assert wilson(8, 10, z=2) == pytest.approx(((1 - spread) / 1.4, (1 + spread) / 1.4))
    assert wilson(0, 10)[0] == 0
    assert wilson(10, 10)[1] == pytest.approx(1)


@pytest.mark.parametrize(
    ("right", "num", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_as_published(right: int, num: int, low: float, high: float) -> None:
    """Newcombe, Statistics in Medicine 17 (1998), table I, method 3."""
    assert wilson(right, num) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(0, 500), st.integers(0, 500))
def test_the_sign_test_is_scipys(lost: int, won: int) -> None:
    if lost + won == 0:
        assert sign_test(0, 0) == 1
        return
    expected = scipy.stats.binomtest(lost, lost + won, 0.5, alternative="greater").pvalue
    assert sign_test(lost, won) == pytest.approx(expected, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize(("lost", "won"), [(520, 490), (600, 500), (1000, 900), (5000, 4900)])
def test_the_sign_test_of_many_images_is_scipys(lost: int, won: int) -> None:
    expected = scipy.stats.binomtest(lost, lost + won, 0.5, alternative="greater").pvalue
    assert sign_test(lost, won) == pytest.approx(expected, rel=1e-8)


def test_the_sign_test_by_hand() -> None:
    # All five of 2⁵ cases, then 4 + 1 of 2⁴.
    assert sign_test(5, 0) == 0.03125
    assert sign_test(3, 1) == 0.3125
    assert sign_test(0, 7) == 1


def test_holm_by_hand() -> None:
    # In order 0.01 ≤ 0.05/4, 0.015 ≤ 0.05/3, 0.03 > 0.05/2: the last two show nothing.
    assert (holm([0.03, 0.01, 0.04, 0.015]), holm([])) == ([False, True, False, True], [])
    assert holm([0.05]) == [True]
    # The third is below 0.05 and comes after one that is not small enough.
    assert holm([0.04, 0.03], level=0.05) == [False, False]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_lies_between_bonferroni_and_no_correction(values: list[float]) -> None:
    for value, shown in zip(values, holm(values), strict=True):
        assert shown or value > 0.05 / len(values)
        assert not shown or value <= 0.05


@pytest.mark.parametrize(
    ("num", "num_tests", "drop"),
    # 2^-5 = 0.031 ≤ 0.05 < 2^-4; with twenty tests 2^-9 = 0.00195 ≤ 0.0025.
    [(40, 1, 12.5), (200, 1, 2.5), (5, 1, 100.0), (4, 1, 125.0), (50, 20, 18.0), (8, 20, 112.5)],
)
def test_the_smallest_drop(num: int, num_tests: int, drop: float) -> None:
    assert smallest_drop(num, num_tests) == pytest.approx(drop)


@given(st.integers(1, 300), st.integers(1, 40))
def test_the_smallest_drop_is_what_the_test_shows(num: int, num_tests: int) -> None:
    drop = smallest_drop(num, num_tests)
    lost = round(drop * num / 100)
    assert sign_test(lost, 0) <= 0.05 / num_tests
    assert lost == 1 or sign_test(lost - 1, 0) > 0.05 / num_tests


def test_the_calibration_error_is_that_of_bins_by_numpy() -> None:
    draws = np.random.default_rng(5)
    sure = draws.random(400)
    right = draws.random(400) < sure**2
    bins = np.digitize(sure, np.linspace(0, 1, 16)[1:-1], right=True)
    gaps = [abs(right[bins == b].mean() - sure[bins == b].mean()) for b in range(15)]
    shares = np.bincount(bins, minlength=15) / 400
    found = calibration_error(sure.tolist(), right.tolist())
    assert found == pytest.approx(float(np.dot(shares, gaps)))


def test_the_calibration_error_by_hand() -> None:
    # Two bins: (0.5, 0.3) with one right, (0.6, 0.8, 1.0) with two: (|1 − 0.8| + |2 − 2.4|)/5.
    sure = [0.5, 0.6, 0.3, 0.8, 1.0]
    right = [True, False, False, True, True]
    assert calibration_error(sure, right, num_bins=2) == pytest.approx(0.6 / 5)
    assert calibration_error([], []) == 0
    assert calibration_error([1.0, 1.0], [True, False]) == pytest.approx(0.5)
