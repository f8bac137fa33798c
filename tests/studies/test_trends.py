"""Rise, reset and agreement of saturation measures, by hand."""

import pytest

from grace.studies.trends import Trend, agreement, rise, spearman, split_at, trend

ALIKE = ((0.3, 0.4, 0.5), (0.31, 0.42, 0.5), (0.29, 0.41, 0.53))


def test_agreement_of_three_ranges() -> None:
    assert agreement(ALIKE) == pytest.approx(0.02495359, abs=5e-9)
    # A longer range counts up to the shortest one's end.
    assert agreement([*ALIKE[:2], (*ALIKE[2], 9.0)]) == agreement(ALIKE)
    assert agreement([ALIKE[0], ALIKE[0]]) == 0
    assert agreement(ALIKE[:1]) is None
    assert agreement([(-1.0,), (1.0,)]) is None
    # Negative values, as of a sharpness, have a positive spread: 0.5/1.5.
    assert agreement([(-1.0,), (-2.0,)]) == pytest.approx(1 / 3)


def test_spearman_by_hand() -> None:
    values = (0.3, 0.4, 0.35, 0.5, 0.6)
    assert spearman(range(5), values) == pytest.approx(0.9)
    assert spearman(range(5), values[::-1]) == pytest.approx(-0.9)
    # Equal values share rank 1.5: ranks 1, 2, 3 against 1.5, 1.5, 3 correlate by 1.5/√3.
    assert spearman(range(3), (1.0, 1.0, 2.0)) == pytest.approx(1.5 / 3**0.5)
    assert spearman(range(3), (7.0, 7.0, 7.0)) == 0


def test_ranges_of_figure_5() -> None:
    tasks = [float(task) for task in range(1, 21)]
    first, second, third = split_at(tasks, [13, 6])
    assert (first[0], first[-1], second[0], second[-1]) == (1, 5, 6, 12)
    assert (third[0], third[-1]) == (13, 20)
    # The small study: ten tasks, expansions at 4 and 7.
    assert [len(values) for values in split_at(tasks[:10], [4, 7])] == [3, 3, 4]
    assert split_at(tasks[:3], [6]) == [tasks[:3]]


def test_a_trend_over_a_stream() -> None:
    values = [value for values in ALIKE for value in values]
    found = trend(values, [4, 7])
    assert found == Trend(1.0, True, pytest.approx(0.02495359, abs=5e-9))
    # The second expansion does not lower it: .5 to .55.
    assert trend([*values[:6], 0.55, 0.41, 0.53], [4, 7]).resets is False
    assert trend([*values[:6], 0.55, 0.41, 0.53], [4, 7]).rise == pytest.approx((1 + 1 - 0.5) / 3)
    # No expansion: nothing to reset, nothing to agree with.
    assert trend(values[:3], []) == Trend(1.0, None, None)


def test_a_range_of_one_task_says_nothing_of_the_rise() -> None:
    assert rise([(0.3,), (0.3, 0.4)]) == 1
    assert rise([(0.3,)]) is None
