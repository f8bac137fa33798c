"""The gate by hand, and how often chance decides it."""

from collections.abc import Sequence

import numpy as np
import pytest

from grace.base.errors import GraceError
from grace.learner.gate import Accuracies, ClassAccuracy, judge, limits, lost_classes, too_fine
from grace.settings.experiment import ExperimentSettings, GateSettings

Counts = tuple[int, int, int]
"""Of a class of 50 images: right before, lost, won."""


def measured(counts: Sequence[Counts], num: int = 50, new: int | None = None) -> Accuracies:
    classes = [
        ClassAccuracy(index=i, num=num, before=before, after=before - lost + won, lost=lost)
        for i, (before, lost, won) in enumerate(counts)
    ]
    added = () if new is None else (ClassAccuracy(index=len(counts), num=num, after=new),)
    return Accuracies(classes=(*classes, *added))


class TestCounts:
    def test_won_and_drop_follow(self) -> None:
        own = ClassAccuracy(index=0, num=50, before=40, after=35, lost=7)
        assert (own.won, own.drop) == (2, 10.0)
        assert ClassAccuracy(index=0, num=50, after=35).drop is None

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
    def test_what_does_not_add_up_is_refused(self, counts: dict[str, int]) -> None:
        with pytest.raises(ValueError, match="contradict"):
            ClassAccuracy(index=0, num=50, **counts)


class TestLimits:
    def test_range(self) -> None:
        settings = ExperimentSettings(gate=GateSettings(max_drop=5, min_new=3))
        assert limits(settings, None) == settings.gate
        assert limits(settings, 7) == GateSettings(max_drop=7, min_new=3)
        for wrong in (-1, 101, float("nan")):
            with pytest.raises(GraceError, match=r"gate\.max_drop = "):
                limits(settings, wrong)

    def test_limits_too_fine_for_the_images(self) -> None:
        assert list(too_fine(GateSettings(max_drop=5, max_class_drop=20), [50] * 4)) == []
        # 7 of 50 images of one of four classes: 2^-7 = 0.0078 ≤ 0.0125.
        (only,) = too_fine(GateSettings(max_drop=2.5, max_class_drop=13), [50] * 4)
        assert str(only) == (
            "gate.max_class_drop=13 is too fine: 50 held-out images can show 14 points at best, "
            "set it so"
        )
        (only,) = too_fine(GateSettings(max_drop=5), [10] * 4)
        assert "40 held-out images can show 12.5 points" in only
        # What is advised is enough: 5 of 35 images are 14.29 %.
        (only,) = too_fine(GateSettings(max_drop=5), [35])
        assert str(only).endswith("can show 14.3 points at best, set it so")
        assert list(too_fine(GateSettings(max_drop=14.3), [35])) == []
        (only,) = too_fine(GateSettings(max_drop=5), [1, 2])
        assert str(only).endswith("can show no drop")
        assert list(too_fine(GateSettings(max_drop=0), [])) == []

    def test_one_is_counted_in_the_singular(self) -> None:
        (only,) = too_fine(GateSettings(max_drop=1), [1])
        assert str(only) == ("gate.max_drop=1 is too fine: 1 held-out image can show no drop")


class TestMaxDrop:
    def test_the_observed_drop_decides_and_the_test_says_how_sure(self) -> None:
        # 24 of 200 lost and 10 won: 7 points, p = 0.012.
        (ruling,) = judge(measured([(40, 6, 2), (40, 6, 3)] * 2), GateSettings(max_drop=5))
        assert (ruling.is_passed, ruling.is_sure, ruling.num) == (False, True, 200)
        assert ruling.observed == pytest.approx(7.0)
        (ruling,) = judge(measured([(40, 6, 2), (40, 6, 3)] * 2), GateSettings(max_drop=7))
        assert (ruling.is_passed, ruling.is_sure) == (True, True)

    def test_doubt_counts_against_the_update(self) -> None:
        # 4 of 40 lost and 1 won: 7.5 points, p = 6/32.
        few = measured([(8, 1, 0), (8, 1, 1), (8, 1, 0), (8, 1, 0)], num=10)
        (ruling,) = judge(few, GateSettings(max_drop=5))
        assert (ruling.is_passed, ruling.is_sure) == (False, False)
        # Within the limit, but a drop of 10 points could not be seen either.
        (ruling,) = judge(measured([(8, 0, 0)] * 4, num=10), GateSettings(max_drop=5))
        assert (ruling.is_passed, ruling.is_sure) == (True, False)


class TestMaxClassDrop:
    def test_a_lost_class_is_found_under_a_gain_of_the_mean(self) -> None:
        # The mean gains 5 points while one class falls from 28 % to 0 %.
        accuracy = measured([(30, 0, 8), (30, 0, 8), (30, 0, 8), (14, 14, 0)])
        assert accuracy.drop == pytest.approx(-5.0)
        assert judge(accuracy, GateSettings(max_drop=0))[0].is_passed
        (ruling,) = judge(accuracy, GateSettings(max_class_drop=10))
        assert (ruling.is_passed, ruling.is_sure, ruling.observed) == (False, True, 28.0)
        assert [own.index for own in lost_classes(accuracy)] == [3]

    def test_the_worst_class_comes_first(self) -> None:
        accuracy = measured([(40, 12, 0), (40, 0, 0), (40, 20, 0)])
        assert [own.index for own in lost_classes(accuracy)] == [2, 0]
        (ruling,) = judge(accuracy, GateSettings(max_class_drop=30))
        assert (ruling.is_passed, ruling.observed) == (False, 40.0)
        (ruling,) = judge(accuracy, GateSettings(max_class_drop=40))
        assert ruling.is_passed

    def test_a_class_in_doubt_is_named(self) -> None:
        # 5 of 50 lost: p = 1/32, above 0.05/4.
        (ruling,) = judge(measured([(40, 5, 0), *[(40, 0, 0)] * 3]), GateSettings(max_class_drop=8))
        assert (ruling.is_passed, ruling.is_sure) == (True, False)
        assert ruling.doubtful == (0,)


class TestMinNew:
    @pytest.mark.parametrize(
        ("right", "limit", "is_passed", "is_sure"),
        # Wilson's interval of 40 of 50 is 67.0 – 88.8 %.
        [
            (40, 60, True, True),
            (40, 80, True, False),
            (40, 81, False, False),
            (40, 90, False, True),
        ],
    )
    def test_the_observed_accuracy_decides(
        self, right: int, limit: float, is_passed: bool, is_sure: bool
    ) -> None:
        (ruling,) = judge(measured([(40, 0, 0)], new=right), GateSettings(min_new=limit))
        assert (ruling.is_passed, ruling.is_sure) == (is_passed, is_sure)


def test_without_images_nothing_is_rejected() -> None:
    for ruling in judge(Accuracies(), GateSettings(max_drop=0, max_class_drop=0, min_new=100)):
        assert (ruling.is_passed, ruling.observed, ruling.is_sure) == (True, None, False)


def drawn(
    rng: np.random.Generator, num_classes: int, num: int, lost: float, won: float
) -> Accuracies:
    """Draw the images of classes that were right by 80 %; shares of all images are lost and won."""
    shares = [0.8 - lost, won, lost, 0.2 - won]
    draws = rng.multinomial(num, shares, size=num_classes).tolist()
    return measured([(kept + gone, gone, gained) for kept, gained, gone, _ in draws], num)


def share_passed(
    num: int, lost: float, won: float, limits: GateSettings, num_classes: int = 4
) -> float:
    rng, draws = np.random.default_rng(1), 3000
    passed = sum(
        all(ruling.is_passed for ruling in judge(drawn(rng, num_classes, num, lost, won), limits))
        for _ in range(draws)
    )
    return passed / draws


class TestTheCoin:
    """Four classes at 80 %: an update loses 13 % of the images and wins 3 %, a drop of 10 points.

    The shares are those of docs/learner/gate.md.
    """

    @pytest.mark.parametrize(("num", "share"), [(10, 0.26), (28, 0.08), (50, 0.04)])
    def test_a_drop_of_ten_points_against_a_limit_of_five(self, num: int, share: float) -> None:
        found = share_passed(num, 0.13, 0.03, GateSettings(max_drop=5))
        assert found == pytest.approx(share, abs=0.02)

    @pytest.mark.parametrize(("num", "share"), [(10, 0.81), (28, 0.88), (50, 0.96)])
    def test_an_update_that_costs_nothing(self, num: int, share: float) -> None:
        found = share_passed(num, 0.10, 0.10, GateSettings(max_drop=5))
        assert found == pytest.approx(share, abs=0.025)

    def test_twenty_classes_that_lose_nothing_are_seldom_rejected_for_the_worst(self) -> None:
        many = share_passed(50, 0.10, 0.10, GateSettings(max_class_drop=10), num_classes=20)
        assert many > 0.95

    def test_a_class_that_is_lost_is_seldom_passed(self) -> None:
        rng, passed = np.random.default_rng(2), 0
        for _ in range(500):
            others = drawn(rng, 19, 50, 0.10, 0.10)
            # From 28 % to 0 %, each image by itself.
            right = int(rng.binomial(50, 0.28))
            worst = ClassAccuracy(index=19, num=50, before=right, after=0, lost=right)
            accuracy = others.model_copy(update={"classes": (*others.classes, worst)})
            passed += judge(accuracy, GateSettings(max_class_drop=10))[0].is_passed
        assert passed / 500 < 0.1
