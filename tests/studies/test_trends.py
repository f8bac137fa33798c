"""Rise, reset and agreement of saturation measures, by hand."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

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


LEVELS = st.sampled_from([-2.5, -1.0, 0.0, 0.25, 1.5, 3.0, 40.0])


@given(st.lists(st.tuples(LEVELS, LEVELS), min_size=2, max_size=12))
def test_spearman_is_scipys(pairs: list[tuple[float, float]]) -> None:
    one, other = zip(*pairs, strict=True)
    constant = len(set(one)) == 1 or len(set(other)) == 1
    expected = 0.0 if constant else scipy.stats.spearmanr(one, other).statistic
    assert spearman(one, other) == pytest.approx(float(expected), abs=1e-9)


def test_rise_and_agreement_are_those_of_scipy_and_numpy() -> None:
    ranges = np.random.default_rng(8).normal(2.0, 0.5, (4, 6))
    found = [scipy.stats.spearmanr(range(6), values).statistic for values in ranges]
    assert rise(ranges.tolist()) == pytest.approx(float(np.mean(found)))
    shares = ranges.std(axis=0) / np.abs(ranges.mean(axis=0))
    assert agreement(ranges.tolist()) == pytest.approx(float(shares.mean()))


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
    assert found == Trend(
        1.0,
        (pytest.approx(0.5 - 0.31), pytest.approx(0.5 - 0.29)),
        pytest.approx(0.02495359, abs=5e-9),
    )
    assert found.resets is True
    # The second expansion does not lower it: .5 to .55.
    assert trend([*values[:6], 0.55, 0.41, 0.53], [4, 7]).resets is False
    assert trend([*values[:6], 0.55, 0.41, 0.53], [4, 7]).rise == pytest.approx((1 + 1 - 0.5) / 3)
    # No expansion: nothing to reset, nothing to agree with.
    assert trend(values[:3], []) == Trend(1.0, (), None)
    assert trend(values[:3], []).resets is None


def test_a_range_of_one_task_says_nothing_of_the_rise() -> None:
    assert rise([(0.3,), (0.3, 0.4)]) == 1
    assert rise([(0.3,)]) is None
