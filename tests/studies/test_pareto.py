from collections.abc import Mapping

import pandas as pd
import pytest

from grace.studies.pareto import dominators, front_places, points
from grace.studies.table import study_tables
from support.synthetic_records import MakeRecord
from support.synthetic_studies import made

TRUTH = {"A": (2, 60), "B": (3, 61), "C": (3, 60.5), "D": (5, 61), "E": (5, 62), "F": (2, 60)}


def series(places: Mapping[str, tuple[float, float]]) -> "tuple[pd.Series, pd.Series]":
    frame = pd.DataFrame(places, index=["x", "y"], dtype=float)
    return frame.loc["x"], frame.loc["y"]


def frames(places: Mapping[str, Mapping[int, tuple[float, float]]]) -> list[pd.DataFrame]:
    """x and y of each row (of TRUTH's form) for each seed."""
    return [
        pd.DataFrame(
            {row: {seed: at[k] for seed, at in own.items()} for row, own in places.items()}
        ).T
        for k in (0, 1)
    ]


def test_dominance_and_ties_by_hand() -> None:
    x, y = series(TRUTH)
    better = dominators(x, y)
    # C is worse than B in y; D than B in x and than E in y; equal places dominate nothing.
    assert {row: set(better.columns[better.loc[row]]) for row in TRUTH} == {
        **{row: set() for row in "ABEF"}, "C": {"B"}, "D": {"B", "E"}
    }  # fmt: skip
    assert points(x, y).to_dict() == {
        (2, 60): ["A", "F"], (3, 60.5): ["C"], (3, 61): ["B"], (5, 61): ["D"], (5, 62): ["E"]
    }  # fmt: skip


def test_places_on_the_fronts_of_the_seeds_that_all_have() -> None:
    measured = {
        "A": {1: (2, 60), 2: (2, 60), 3: (2, 60), 4: (9, 99)},
        "B": {1: (3, 61), 2: (3, 59), 3: (3, 60)},
        "F": {1: (2, 60), 2: (2, 59), 3: (2, 60)},
    }
    # Means: A (2, 60), B (3, 60), F (2, 59.67); two standard errors of B's and F's gap are wide.
    places = front_places(*frames(measured))
    assert places["is_on_front"].to_dict() == {"A": True, "B": False, "F": False}
    assert places["times"].to_dict() == {"A": 3, "B": 1, "F": 2}
    assert set(places["seeds"]) == {3}
    assert set(places["dominated_by"]) == {0}
    assert front_places(*frames({"a": {1: (2, 60)}, "b": {2: (2, 60)}})).empty


@pytest.mark.parametrize(
    ("above", "dominated"),
    [
        # Differences 1, 2, 3: mean 2 > 2/√3. Differences 0, 2, 4: mean 2 < 4/√3.
        ({1: (2, 61), 2: (2, 63), 3: (2, 65)}, 1),
        ({1: (2, 60), 2: (2, 63), 3: (2, 66)}, 0),
        # More backbones: no dominance, however accurate.
        ({1: (4, 90), 2: (4, 91), 3: (4, 92)}, 0),
        ({1: (3, 60), 2: (3, 61), 3: (3, 62)}, 0),
    ],
)
def test_dominance_beyond_noise_needs_two_standard_errors(
    above: dict[int, tuple[float, float]], dominated: int
) -> None:
    low = {1: (3.0, 60.0), 2: (3.0, 61.0), 3: (3.0, 62.0)}
    assert (
        front_places(*frames({"above": above, "low": low})).at["low", "dominated_by"] == dominated
    )
    one = front_places(*frames({"above": {1: above[1]}, "low": {1: low[1]}}))
    assert one["dominated_by"].isna().all()  # One seed shows no noise.


def test_the_table_of_a_front(make_record: MakeRecord) -> None:
    grid = {"method.threshold": [0.5, 0.6, 0.7], "method.threshold_decay": [0.9]}
    rows = {
        "pairs": {"method": "grace", "grid": grid},
        "more": {"method": "grace", "grid": {"memory.size": [9]}},
    }
    numbers = {"0.5/0.9": [(50, 62, 3)] * 2, "0.6/0.9": [(50, 60, 2)], "0.7/0.9": []}
    found = made(make_record, numbers, chosen=("pairs",), rows=rows, figures=["front"])
    [_, table] = study_tables(found)
    # One seed shows no noise.
    assert table.rows == [
        ["0.5/0.9", "yes", "1 of 1", "–"],
        ["0.6/0.9", "yes", "1 of 1", "–"],
        ["0.7/0.9", "–", "–", "–"],
    ]
    assert table.notes[1:] == [
        "compared over the seeds that all pairs with a run have: 1 of 3",
        "not all pairs were chosen: others may be better than those on the front",
    ]
    plain = made(make_record, {"der": [(50, 62, 3)]}, figures=["front"])
    assert len(study_tables(plain)) == 1  # It has no grid.
