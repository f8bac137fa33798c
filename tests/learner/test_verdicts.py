"""The gate: its statistics against scipy and by hand, and how often chance decides it."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from grace.base.errors import GraceError
from grace.learner import gate
from grace.learner.gate import Accuracies, ClassAccuracy, Ruling
from grace.settings.experiment import ExperimentSettings, GateSettings

Counts = tuple[int, int, int]
"""Of a class of 50 images: right before, lost, won."""


@given(st.data(), st.integers(1, 400))
def test_wilson_is_scipys(data: st.DataObject, num: int) -> None:
    right = data.draw(st.integers(0, num))
    expected = scipy.stats.binomtest(right, num).proportion_ci(0.95, method="wilson")
    assert gate.wilson(right, num) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_wilson_by_hand_and_as_published() -> None:
    # 8 of 10 with z = 2: z²/n = 0.4, middle 1.0, spread 2·sqrt(0.016 + 0.01), all over 1.4.
    spread = 2 * math.sqrt(0.8 * 0.2 / 10 + 4 / 400)
    assert gate.wilson(8, 10, z=2) == pytest.approx(((1 - spread) / 1.4, (1 + spread) / 1.4))
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    assert gate.wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert gate.wilson(0, 20) == pytest.approx((0, 0.1611), abs=5e-5)


@given(st.integers(0, 700), st.integers(0, 700))
def test_the_sign_test_is_scipys(lost: int, won: int) -> None:
    expected = scipy.stats.binomtest(lost, max(1, lost + won), 0.5, alternative="greater").pvalue
    assert gate.sign_test(lost, won) == pytest.approx(expected, rel=1e-8, abs=1e-300)


def test_the_sign_test_by_hand() -> None:
    # All five of 2⁵ cases, then 4 + 1 of 2⁴.
    assert (gate.sign_test(5, 0), gate.sign_test(3, 1), gate.sign_test(0, 7)) == (
        0.03125,
        0.3125,
        1,
    )
    assert gate.sign_test(5000, 4900) == pytest.approx(scipy.stats.binom.sf(4999, 9900, 0.5))


def test_holm_by_hand() -> None:
    # In order 0.01 ≤ 0.05/4, 0.015 ≤ 0.05/3, 0.03 > 0.05/2: the last two show nothing.
    assert (gate.holm([0.03, 0.01, 0.04, 0.015]), gate.holm([])) == ([False, True, False, True], [])
    # The second is below 0.05 and comes after one that is not small enough.
    assert (gate.holm([0.05]), gate.holm([0.04, 0.03])) == ([True], [False, False])


@given(st.integers(1, 300), st.integers(1, 40))
def test_the_smallest_drop_is_what_the_test_shows(num: int, num_tests: int) -> None:
    lost = round(gate.smallest_drop(num, num_tests) * num / 100)
    assert gate.sign_test(lost, 0) <= 0.05 / num_tests < gate.sign_test(lost - 1, 0)


def test_the_calibration_error_by_hand() -> None:
    # Two bins: (0.5, 0.3) with one right, (0.6, 0.8, 1.0) with two: (|1 − 0.8| + |2 − 2.4|)/5.
    sure, right = [0.5, 0.6, 0.3, 0.8, 1.0], [True, False, False, True, True]
    assert gate.calibration_error(sure, right, num_bins=2) == pytest.approx(0.6 / 5)
    assert gate.calibration_error([], []) == 0
    assert gate.calibration_error([1.0, 1.0], [True, False]) == pytest.approx(0.5)


def measured(counts: Sequence[Counts], num: int = 50, new: int | None = None) -> Accuracies:
    classes = [
        ClassAccuracy(index=i, num=num, before=before, after=before - lost + won, lost=lost)
        for i, (before, lost, won) in enumerate(counts)
    ]
    added = () if new is None else (ClassAccuracy(index=len(counts), num=num, after=new),)
    return Accuracies(classes=(*classes, *added))


def test_accuracies_follow_from_the_counts_of_classes() -> None:
    found = measured([(40, 7, 2), (30, 0, 5)], new=45)
    assert (found.old_before, found.old_after, found.new_after) == (0.7, 0.7, 0.9)
    assert (found.num_old, found.num_new, found.drop) == (100, 50, 0)
    assert [(own.won, own.drop) for own in found.classes] == [(2, 10), (5, -10), (0, None)]
    assert [own.index for own in found.old_classes] == [0, 1]
    nothing = Accuracies(teacher=0.5, student=0.75)
    assert (nothing.compression_cost, nothing.drop, nothing.old_before) == (-25, None, None)


@pytest.mark.parametrize(
    "counts",
    [
        {"before": 51, "after": 50},
        {"after": 51},
        {"before": 3, "after": 0, "lost": 4},
        {"before": 10, "after": 3, "lost": 5},
        {"before": 45, "after": 50, "lost": 5},
        {"after": 3, "lost": 1},
    ],
)
def test_counts_that_do_not_add_up_are_refused(counts: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="contradict"):
        ClassAccuracy(index=0, num=50, **counts)


def test_a_call_may_replace_one_limit() -> None:
    settings = ExperimentSettings(gate=GateSettings(max_drop=5, min_new=3))
    assert gate.limits(settings, None) == settings.gate
    assert gate.limits(settings, 7) == GateSettings(max_drop=7, min_new=3)
    for wrong in (-1, 101, float("nan")):
        with pytest.raises(GraceError, match=r"gate\.max_drop = "):
            gate.limits(settings, wrong)


@pytest.mark.parametrize(
    ("asked", "counts", "says"),
    [
        ({"max_drop": 5, "max_class_drop": 20}, [50] * 4, []),
        # 7 of 50 images of one of four classes: 2^-7 = 0.0078 ≤ 0.0125.
        (
            {"max_drop": 2.5, "max_class_drop": 13},
            [50] * 4,
            ["max_class_drop=13 is too fine: 50 held-out images can show no drop below 14 points"],
        ),
        # What is advised is enough: 5 of 35 images are 14.29 %.
        (
            {"max_drop": 5},
            [35],
            ["35 held-out images can show no drop below 14.3 points; set no less"],
        ),
        ({"max_drop": 14.3}, [35], []),
        ({"max_drop": 1}, [1], ["1 held-out image can show no drop"]),
        ({"max_drop": 0}, [], []),
    ],
)
def test_limits_too_fine_for_the_images(
    asked: dict[str, float], counts: list[int], says: list[str]
) -> None:
    found = list(gate.too_fine(GateSettings(**asked), counts))
    assert all(part in text for text, part in zip(found, says, strict=True))


def doubtful(names: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"is_sure": False, "doubtful": names}


LOST = [(40, 6, 2), (40, 6, 3)] * 2
"""24 of 200 lost and 10 won: 7 points, p = 0.012."""
FEW = [(8, 1, 0), (8, 1, 1), (8, 1, 0), (8, 1, 0)]
"""4 of 40 lost and 1 won: 7.5 points, p = 6/32."""
ONE = [(30, 0, 8), (30, 0, 8), (30, 0, 8), (14, 14, 0)]
"""The mean gains 5 points while one class falls from 28 % to 0 %."""
TWO = [(40, 12, 0), (40, 0, 0), (40, 20, 0)]


@pytest.mark.parametrize(
    ("accuracy", "asked", "expected"),
    [
        (measured(LOST), {"max_drop": 5}, {"is_passed": False, "observed": 7, "num": 200}),
        (measured(LOST), {"max_drop": 7}, {"p_value": gate.sign_test(24, 10)}),
        # Doubt counts against the update; within the limit, 10 points could not be seen either.
        (measured(FEW, num=10), {"max_drop": 5}, {"is_passed": False, **doubtful()}),
        (measured([(8, 0, 0)] * 4, num=10), {"max_drop": 5}, doubtful()),
        (measured(ONE), {"max_drop": 0}, {"observed": -5, "is_sure": False}),
        (measured(ONE), {"max_class_drop": 10}, {"is_passed": False, "observed": 28, "num": 50}),
        (measured(TWO), {"max_class_drop": 30}, {"is_passed": False, "observed": 40}),
        (measured(TWO), {"max_class_drop": 40}, {"p_value": 2**-20}),
        # 5 of 50 lost: p = 1/32, above 0.05/4.
        (measured([(40, 5, 0), *[(40, 0, 0)] * 3]), {"max_class_drop": 8}, doubtful((0,))),
        # Wilson's interval of 40 of 50 is 67.0 – 88.8 %.
        (measured([], new=40), {"min_new": 60}, {"observed": 80}),
        (measured([], new=40), {"min_new": 80}, doubtful()),
        (measured([], new=40), {"min_new": 81}, {"is_passed": False, **doubtful()}),
        (measured([], new=40), {"min_new": 90}, {"is_passed": False}),
        # 100·(0.8 - 0.7) is 10.000000000000009: the limit itself is allowed.
        (measured([(400, 100, 50)], num=500), {"max_drop": 10}, {"is_sure": True}),
        *((Accuracies(), {name: 0}, doubtful()) for name in GateSettings.model_fields),
    ],
)
def test_rulings(accuracy: Accuracies, asked: dict[str, float], expected: dict[str, Any]) -> None:
    (ruling,) = gate.judge(accuracy, GateSettings(**asked))
    assert ruling.name in asked
    wanted = {"is_passed": True, "is_sure": True, "doubtful": ()} | expected
    for name, value in wanted.items():
        found = getattr(ruling, name)
        assert found == (value if isinstance(value, tuple) else pytest.approx(value)), name
    assert gate.accepts(accuracy, GateSettings(**asked)) == ruling.is_passed


def test_the_classes_that_lost_are_named_the_worst_first() -> None:
    assert [own.index for own in gate.lost_classes(measured(TWO))] == [2, 0]
    assert [own.index for own in gate.lost_classes(measured(ONE))] == [3]


def test_verdicts_are_said() -> None:
    (worst,) = gate.judge(measured([(40, 5, 0)] * 2), GateSettings(max_class_drop=8))
    assert worst.words(["ant", "bee"]).endswith("(gate.max_class_drop); in doubt: ant, bee")
    old = Ruling("max_drop", 5, is_passed=False, observed=7.5, num=40).words([])
    assert old.startswith(
        "rejected: the old classes lost 7.5 points, 5 allowed (gate.max_drop); 40"
    )
    assert "cannot judge" in Ruling("min_new", 50).words([])


def drawn(
    rng: np.random.Generator, num_classes: int, num: int, lost: float, won: float
) -> Accuracies:
    """Draw the images of classes that were right by 80 %; shares of all images are lost and won."""
    shares = [0.8 - lost, won, lost, 0.2 - won]
    draws = rng.multinomial(num, shares, size=num_classes).tolist()
    return measured([(kept + gone, gone, gained) for kept, gained, gone, _ in draws], num)


@pytest.mark.parametrize(
    ("num", "lost", "won", "asked", "num_classes", "share"),
    # The shares are those of docs/learner/gate.md: four classes at 80 %, an update loses 13 % of
    # the images and wins 3 %, a drop of 10 points, or costs nothing; then the worst of twenty.
    [
        (10, 0.13, 0.03, {"max_drop": 5}, 4, 0.26),
        (50, 0.13, 0.03, {"max_drop": 5}, 4, 0.04),
        (10, 0.10, 0.10, {"max_drop": 5}, 4, 0.81),
        (50, 0.10, 0.10, {"max_drop": 5}, 4, 0.96),
        (50, 0.10, 0.10, {"max_class_drop": 10}, 20, 0.975),
    ],
)
def test_how_often_chance_decides(
    num: int, lost: float, won: float, asked: dict[str, float], num_classes: int, share: float
) -> None:
    rng, draws = np.random.default_rng(1), 1500
    passed = sum(
        gate.accepts(drawn(rng, num_classes, num, lost, won), GateSettings(**asked))
        for _ in range(draws)
    )
    assert passed / draws == pytest.approx(share, abs=0.025)
