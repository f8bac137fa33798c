import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.studies.groups import group_records, spread
from support.synthetic_records import MakeRecord


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9))
def test_spread_agrees_with_numpy(values: list[float]) -> None:
    # Reference: numpy's sample standard deviation.
    found = spread(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-6)
    assert found.deviation == pytest.approx(np.std(values, ddof=1), rel=1e-6, abs=1e-6)


def test_spread_of_one_none_and_missing() -> None:
    single = spread([3.0])
    assert (single.mean, single.deviation, single.count) == (3.0, None, 1)
    assert (spread([]), spread([1.0, None])) == (None, None)
    both = spread([80.0, 84.0])
    # (4 + 4) / (2 - 1) = 8
    assert both.deviation == pytest.approx(8**0.5)


FRESH = ["method.initialisation=random", "methods.grace.gamma=4"]


def test_seeds_and_execution_do_not_separate(make_record: MakeRecord) -> None:
    records = [
        make_record("der", 2),
        make_record("grace", 1),
        make_record("grace", 2, overrides=["engine.threads=1"]),
        make_record("grace", 1, overrides=FRESH),
        make_record("replay", 1, experiment="cifar10"),
    ]
    groups = group_records(records)
    names = [(group.experiment, group.method, len(group.records)) for group in groups]
    assert names == [
        ("cifar10", "replay", 1),
        ("digits", "grace", 2),
        ("digits", "grace", 1),
        ("digits", "der", 1),
    ]
    assert [record.seed for record in groups[1].records] == [1, 2]
    assert groups[3].label == "der"
    assert {group.variant for group in groups if group.method == "grace"} == {
        "gamma=5.0, initialisation=importance",
        "gamma=4.0, initialisation=random",
    }


def test_precision_separates(make_record: MakeRecord) -> None:
    records = [
        make_record("der", 1),
        make_record("der", 2, overrides=["engine.precision=bfloat16"]),
    ]
    assert {group.variant for group in group_records(records)} == {
        "engine.precision=bfloat16",
        "engine.precision=float32",
    }


def test_mean_over_complete_runs_only(make_record: MakeRecord) -> None:
    records = [make_record("der", 1), make_record("der", 2), make_record("der", 3, done=2)]
    (group,) = group_records(records)
    assert [record.seed for record in group.complete] == [1, 2]
    lasts = [record.last for record in records[:2]]
    found = group.over_runs(lambda record: record.last)
    assert found is not None
    assert found.mean == pytest.approx(statistics.mean(value for value in lasts if value))
    assert found.count == 2
