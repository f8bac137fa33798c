"""Merge weights, with the values of docs/how-grace-works.md (γ = 5)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import gmean, pmean

from grace.nn.merging import bias, merge_weight, preservation


@pytest.mark.parametrize(
    ("merge_classes", "new_classes", "exemplars_per_class", "p", "b", "w"),
    [
        # 500 images per new class; exemplars 2000 // K_old.
        pytest.param(10, 10, 200, 0.5, 0.7143, 0.6414, id="B0I10 task 2"),
        pytest.param(50, 10, 40, 0.8333, 0.9259, 0.8845, id="B50I10 task 2"),
        pytest.param(50, 2, 40, 0.9615, 0.9259, 0.9444, id="B50I2 task 2"),
        pytest.param(5, 5, 400, 0.5, 0.5556, 0.5307, id="B0I5 task 2"),
    ],
)
def test_published_protocols(
    merge_classes: int, new_classes: int, exemplars_per_class: int, p: float, b: float, w: float
) -> None:
    preserved = preservation(merge_classes, new_classes)
    biased = bias(500, exemplars_per_class)
    assert preserved == pytest.approx(p, abs=5e-5)
    assert biased == pytest.approx(b, abs=5e-5)
    assert merge_weight(preserved, biased, gamma=5) == pytest.approx(w, abs=5e-5)


def test_gamma_one_is_the_arithmetic_mean() -> None:
    assert merge_weight(0.2, 0.6, gamma=1) == pytest.approx(0.4)


def test_without_memory_the_bias_is_one() -> None:
    assert bias(500, 0) == 1.0


@given(p=st.floats(0.01, 1), b=st.floats(0.01, 1), gamma=st.floats(0.2, 20))
def test_weight_lies_between_its_factors_and_grows_with_gamma(
    p: float, b: float, gamma: float
) -> None:
    w = merge_weight(p, b, gamma)
    assert min(p, b) - 1e-9 <= w <= max(p, b) + 1e-9
    assert merge_weight(p, b, gamma * 1.5) >= w - 1e-9


@given(p=st.floats(0.01, 1), b=st.floats(0.01, 1), gamma=st.floats(0.02, 20))
def test_weight_is_the_power_mean(p: float, b: float, gamma: float) -> None:
    assert merge_weight(p, b, gamma) == pytest.approx(float(pmean([p, b], gamma)), rel=1e-6)


def test_limits_of_the_power_mean() -> None:
    assert merge_weight(0.2, 0.8, gamma=1e-6) == pytest.approx(float(gmean([0.2, 0.8])), rel=1e-4)
    assert merge_weight(0.2, 0.8, gamma=300) == pytest.approx(0.8, rel=5e-3)


def test_shares_by_hand() -> None:
    assert preservation(30, 10) == pytest.approx(0.75)
    assert bias(450, 50) == pytest.approx(0.9)
    # As many exemplars as new images: neither side is favoured.
    assert bias(70, 70) == pytest.approx(0.5)
