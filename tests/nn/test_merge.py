"""Merge weights, with the values of docs/how-grace-works.md (γ = 5)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import pmean

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


@given(p=st.floats(0.01, 1), b=st.floats(0.01, 1), gamma=st.floats(0.02, 20))
def test_weight_is_the_power_mean(p: float, b: float, gamma: float) -> None:
    assert merge_weight(p, b, gamma) == pytest.approx(float(pmean([p, b], gamma)), rel=1e-6)
