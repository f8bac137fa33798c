"""The decaying threshold, worked by hand from paper Eq. 4."""

import pytest

from grace.nn.threshold import Threshold


def test_decay_and_reset() -> None:
    # τ₁ = 0.5, ρ = 0.9: 0.5, then 0.45, 0.405 after two compressions, 0.5 after an expansion.
    threshold = Threshold(initial=0.5, decay=0.9)
    seen = []
    for saturation in (0.49, 0.44, 0.405001, 0.1):
        verdict = threshold.verdict(saturation)
        seen.append((round(threshold.value, 6), verdict))
        threshold = threshold.after(verdict)
    assert seen == [(0.5, "compress"), (0.45, "compress"), (0.405, "grow"), (0.5, "compress")]


@pytest.mark.parametrize("saturation", [0.6, 0.61, 1.0])
def test_reaching_the_threshold_expands(saturation: float) -> None:
    assert Threshold(initial=0.6, decay=0.96).verdict(saturation) == "grow"


def test_an_expansion_resets_whatever_came_before() -> None:
    threshold = Threshold(initial=0.6, decay=0.96, compressions=7)
    assert threshold.value == pytest.approx(0.6 * 0.96**7)
    assert threshold.after("grow").value == 0.6


def test_no_decay_keeps_the_threshold() -> None:
    assert Threshold(initial=0.3, decay=1.0, compressions=50).value == 0.3
