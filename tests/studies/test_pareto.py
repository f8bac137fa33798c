"""The Pareto front: dominance, ties, spread."""

import random

import numpy as np
import pytest
import scipy.stats

from grace.studies.claims import judge
from grace.studies.pareto import (
    FrontPlace,
    Point,
    dominates,
    dominates_beyond_noise,
    front,
    front_places,
    mean_points,
    merged,
)
from grace.studies.table import study_tables
from support.synthetic_records import MakeRecord
from support.synthetic_studies import made

TRUTH = {"A": (2, 60), "B": (3, 61), "C": (3, 60.5), "D": (5, 61), "E": (5, 62), "F": (2, 60)}


def points(places: dict[str, tuple[float, float]]) -> list[Point]:
    return [Point(*place, (label,)) for label, place in places.items()]


def test_dominance_and_ties_by_hand() -> None:
    assert front(points(TRUTH)) == [
        Point(2, 60, ("A", "F")),
        Point(3, 61, ("B",)),
        Point(5, 62, ("E",)),
    ]
    assert len(merged(points(TRUTH))) == 5
    assert front([]) == []


def test_a_tie_in_one_coordinate_loses_to_the_better_other() -> None:
    assert dominates(Point(3, 61, ()), Point(3, 60.5, ()))
    assert dominates(Point(3, 61, ()), Point(5, 61, ()))
    assert not dominates(Point(2, 60, ()), Point(2, 60, ()))
    assert not dominates(Point(2, 60, ()), Point(3, 61, ()))


def test_a_front_rises_and_covers_all_points() -> None:
    draw = random.Random(5)  # noqa: S311 - no secret
    for _ in range(50):
        cloud = [Point(draw.randrange(8), draw.randrange(8), (str(i),)) for i in range(20)]
        found = front(cloud)
        assert [p.x for p in found] == sorted({p.x for p in found})
        assert [p.y for p in found] == sorted({p.y for p in found})
        for point in cloud:
            stands = any(point.labels[0] in p.labels for p in found)
            assert stands != any(dominates(p, point) for p in found)


def test_means_are_over_the_seeds_that_all_have() -> None:
    measured = {
        "a": {1: (2.0, 60.0), 2: (3.0, 61.0), 3: (9.0, 99.0)},
        "b": {2: (2.0, 62.0), 1: (2.0, 61.5)},
    }
    assert mean_points(measured) == [Point(2.5, 60.5, ("a",)), Point(2.0, 61.75, ("b",))]
    assert mean_points({"a": {1: (2, 60)}, "b": {2: (2, 60)}}) == []
    assert front_places({"a": {1: (2, 60)}, "b": {2: (2, 60)}}) == {}


def test_a_claim_is_judged_by_students_t() -> None:
    placed = np.random.default_rng(6).normal(50, 9, (2, 5, 2))
    differences = placed[0, :, 1] - placed[1, :, 1]
    judged = judge(differences.tolist())
    assert judged.standard_error == pytest.approx(float(scipy.stats.sem(differences)))
    student = scipy.stats.ttest_1samp(differences, 0).statistic
    assert judged.mean / judged.standard_error == pytest.approx(float(student))


def test_share_of_seeds_in_whose_own_front_a_pair_stands() -> None:
    measured = {
        "A": {1: (2.0, 60.0), 2: (2.0, 60.0), 3: (2.0, 60.0)},
        "B": {1: (3.0, 61.0), 2: (3.0, 59.0), 3: (3.0, 60.0)},
        "F": {1: (2.0, 60.0), 2: (2.0, 59.0), 3: (2.0, 60.0)},
    }
    # Means: A (2, 60), B (3, 60), F (2, 59.67); two standard errors of B's and F's gap are wide.
    assert front_places(measured) == {
        "A": FrontPlace(is_on_front=True, times=3, seeds=3, dominated_by=0),
        "B": FrontPlace(is_on_front=False, times=1, seeds=3, dominated_by=0),
        "F": FrontPlace(is_on_front=False, times=2, seeds=3, dominated_by=0),
    }


def test_a_pair_is_dominated_beyond_noise_over_the_seeds_that_all_have() -> None:
    measured = {
        "A": {1: (2.0, 61.0), 2: (2.0, 63.0), 3: (2.0, 65.0), 4: (2.0, 0.0)},
        "B": {1: (3.0, 60.0), 2: (3.0, 61.0), 3: (3.0, 62.0), 4: (3.0, 99.0)},
        "C": {1: (3.0, 59.0), 2: (3.0, 60.0), 3: (3.0, 61.0)},
    }
    # C lacks seed 4, which would turn A and B round. A − B is 1, 2, 3 and 2 > 2/√3; B − C is 1.
    dominated = {label: place.dominated_by for label, place in front_places(measured).items()}
    assert dominated == {"A": 0, "B": 1, "C": 2}
    assert {place.seeds for place in front_places(measured).values()} == {3}


def test_dominance_beyond_noise_needs_two_standard_errors() -> None:
    low = {1: (3.0, 60.0), 2: (3.0, 61.0), 3: (3.0, 62.0)}
    # Differences 1, 2, 3: mean 2 > 2/√3. Differences 0, 2, 4: mean 2 < 4/√3.
    assert dominates_beyond_noise({1: (2.0, 61.0), 2: (2.0, 63.0), 3: (2.0, 65.0)}, low)
    assert not dominates_beyond_noise({1: (2.0, 60.0), 2: (2.0, 63.0), 3: (2.0, 66.0)}, low)
    # More backbones: no dominance, however accurate. One seed: no noise is known.
    assert not dominates_beyond_noise({1: (4.0, 90.0), 2: (4.0, 91.0), 3: (4.0, 92.0)}, low)
    assert not dominates_beyond_noise({1: (2.0, 90.0)}, low)
    assert not dominates_beyond_noise(low, low)


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
    assert table.rows == (
        ("0.5/0.9", "yes", "1 of 1", "–"),
        ("0.6/0.9", "yes", "1 of 1", "–"),
        ("0.7/0.9", "–", "–", "–"),
    )
    assert table.notes[1:] == (
        "compared over the seeds that all pairs with a run have: 1 of 3",
        "not all pairs were chosen: others may be better than those on the front",
    )
    plain = made(make_record, {"der": [(50, 62, 3)]}, figures=["front"])
    assert len(study_tables(plain)) == 1  # It has no grid.
