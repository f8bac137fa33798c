"""Rise, reset and agreement of saturation measures, by hand and against scipy."""

from dataclasses import replace

import numpy as np
import pytest

from grace.runs.model import RunRecord
from grace.studies.claims import judge_claims
from grace.studies.figures import study_figures
from grace.studies.measures import Trend, measures_of, trend, trends_of
from grace.studies.plan import Found
from grace.studies.results import StudyResult
from grace.studies.table import study_tables
from support.synthetic_records import MakeRecord
from support.synthetic_studies import SEEDS, made, with_measures

ALIKE = ((0.3, 0.4, 0.5), (0.31, 0.42, 0.5), (0.29, 0.41, 0.53))


def of_ranges(*ranges: tuple[float, ...]) -> Trend:
    """The trend of these ranges, one after the other."""
    starts = np.cumsum([len(own) for own in ranges]) + 1
    return trend([value for own in ranges for value in own], [int(n) for n in starts[:-1]])


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
    higher = trend([*values[:6], 0.55, 0.41, 0.53], [4, 7])
    assert (higher.resets, higher.rise) == (False, pytest.approx((1 + 1 - 0.5) / 3))
    # No expansion: nothing to reset, nothing to agree with; those above the last task are none.
    for at in ([], [6]):
        assert trend(values[:3], at) == Trend(1.0, (), None)
    assert trend(values[:3], []).resets is None
    # A range of one task says nothing of the rise, and a constant does not rise.
    assert of_ranges((0.3,), (0.3, 0.4)).rise == pytest.approx(1)
    assert (of_ranges((0.3,)).rise, of_ranges((7.0, 7.0)).rise) == (None, 0)
    # A longer range counts up to the shortest one's end.
    assert of_ranges(*ALIKE[:2], (*ALIKE[2], 9.0)).agreement == found.agreement
    # Negative values, as of a sharpness, have a positive spread: 0.5/1.5.
    assert of_ranges((-1.0,), (-2.0,)).agreement == pytest.approx(1 / 3)
    assert of_ranges((-1.0,), (1.0,)).agreement is None


# Two ranges of three tasks: the second begins with the expansion at task 4.
VALUES = {
    "effective_rank": [0.3, 0.4, 0.5, 0.31, 0.42, 0.5],
    "fisher": [1.0, 2.0, 1.5, 4.0, 5.0, 6.0],
    "weight_norm": [6.0, 5.0, 4.0, 3.0, 2.0, 1.0],
}
VERDICTS = ("start", "compress", "compress", "grow", "compress", "compress")


def recorded(make_record: MakeRecord, values: dict[str, list[float]], seed: int = 1) -> RunRecord:
    record = make_record("grace", seed, task_sizes=(2,) * 6, verdicts=VERDICTS)
    return with_measures(record, values)


def results(make_record: MakeRecord, *runs: dict[str, list[float]], **study: object) -> StudyResult:
    plain = made(
        make_record,
        {"grace": []},
        rows={"grace": {"method": "grace", "label": "ours"}},
        figures=["measures"],
        **study,
    )
    records = [recorded(make_record, values, next(SEEDS)) for values in runs]
    found = {cell.run: Found(own) for cell, own in zip(plain.cells, records, strict=False)}
    return replace(plain, found=found)


def test_the_measures_of_a_run(make_record: MakeRecord) -> None:
    errors = {"fisher_error": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}  # A standard error is no measure.
    record = recorded(make_record, VALUES | errors)
    assert measures_of(record) == VALUES
    # Fisher: ranks 1, 3, 2 against 1, 2, 3 correlate by 1/2, then 1: mean 0.75.
    assert {name: found.rise for name, found in trends_of(record).items()} == pytest.approx(
        {"effective_rank": 1.0, "fisher": 0.75, "weight_norm": -1.0}
    )


@pytest.mark.parametrize(
    ("kind", "difference"),
    [
        ("rises-most", 0.25),
        ("resets", 0.5 - 0.31),
        # Deviation/mean by position: effective rank .005/.305, .01/.41, 0; Fisher, the only other
        # one that rises: 1.5/2.5, 1.5/3.5, 2.25/3.75.
        ("agrees-best", (0.6 + 1.5 / 3.5 + 0.6) / 3 - (0.005 / 0.305 + 0.01 / 0.41) / 3),
    ],
)
def test_claims_about_a_measure_by_hand(
    kind: str, difference: float, make_record: MakeRecord
) -> None:
    claims = [{"id": "S", "kind": kind, "left": "effective_rank"}]
    [claim] = judge_claims(results(make_record, VALUES, VALUES, VALUES, claims=claims))
    judgement = claim.lines[0].judgement
    assert (judgement.mean, judgement.count) == (pytest.approx(difference), 3)
    assert claim.verdict == "holds"
    [missing] = judge_claims(results(make_record, VALUES, VALUES, claims=claims))
    assert missing.lines[0].judgement.count == 2
    assert missing.verdict == "not measured"
    [none] = judge_claims(results(make_record, {}, {}, {}, claims=claims))
    assert none.lines[0].judgement.mean is None


# Of two seeds.
RANK = ([0.3, 0.4, 0.5, 0.31, 0.42, 0.5], [0.3, 0.5, 0.4, 0.5, 0.4, 0.3])
NORM = ([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


def test_the_table_of_measures_by_hand(make_record: MakeRecord) -> None:
    runs = [{"effective_rank": r, "weight_norm": n} for r, n in zip(RANK, NORM, strict=True)]
    [_, table] = study_tables(results(make_record, *runs))
    assert table.name == "b0i10: measures of ours"
    # Rank, seed 1, rises in both ranges: 1. Seed 2: ranks 1, 3, 2 give 1/2, and a fall −1: −1/4.
    # Mean 0.375, deviation 1.25/√2. It falls from .5 to .31, and rises from .4 to .5. Agreement:
    # (0.005/0.305 + 0.01/0.41)/3 and (1/4 + 1/9 + 1/7)/3.
    # The norm falls at every task of seed 1 and rises at every one of seed 2; both agree by
    # (1.5/4.5 + 1.5/3.5 + 1.5/2.5)/3 = 0.454.
    assert table.rows == [
        ["effective rank", "2", "0.38 ± 0.88", "1 of 2", "1 of 2", "0.09 ± 0.11"],
        ["weight norm", "2", "0.00 ± 1.41", "1 of 2", "1 of 2", "0.45"],
    ]
    assert len(study_tables(results(make_record, {}))) == 1  # No measures, no table of them.


def test_a_panel_for_each_measure_with_the_expansion(make_record: MakeRecord) -> None:
    svg = study_figures(results(make_record, VALUES))["measures"]
    for name in ("effective rank", "fisher", "weight norm"):
        assert f">{name}</text>" in svg
    assert svg.count("stroke-dasharray") == 3  # One expansion in each panel.
