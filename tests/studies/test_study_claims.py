"""Claims over records whose numbers are set by hand."""

from typing import Any

import pytest

from grace.studies.claims import judge_claims
from grace.studies.table import claims_table, study_tables
from support.synthetic_records import MakeRecord
from support.synthetic_studies import Numbers, made


def rows_of(*names: str) -> dict[str, Any]:
    """Rows with settings of their own."""
    return {name: {"method": "der", "set": [f"memory.size={n}"]} for n, name in enumerate(names)}


THREE: Numbers = {
    "grace": [(60, 70, 3), (62, 71, 2), (61, 72, 3)],
    "der": [(59, 69, 5), (61.5, 70.2, 5), (59.5, 71.1, 5)],
    "foster": [(50, 69.8, 1), (51, 70.4, 1), (52, 70.6, 1)],
}
RISING = [["grace", "der"], ["foster", "grace"]]
FALLING = [["grace", "foster"], ["der", "grace"]]
OTHERS = [["foster", "grace"], ["der", "foster"]]


SOME = {"left": "grace", "right": "foster", "metrics": {"last": -9, "average": -9}}


def judged(make_record: MakeRecord, claim: dict[str, Any], numbers: Numbers = THREE) -> Any:
    results = made(make_record, numbers, rows=rows_of(*numbers), claims=[claim])
    [found] = judge_claims(results)
    return found


@pytest.mark.parametrize(
    ("claim", "means", "verdict"),
    [
        # 1, 0.5 and 1.5.
        ({"left": "grace", "right": "der"}, [1.0], "holds"),
        # grace − der: Last 1, Avg (1 + 0.8 + 0.9)/3 + 2; foster − grace: Last −10, Avg −0.7333 + 2.
        (
            {"pairs": RISING, "metrics": {"last": 0, "average": 2}},
            [1.0, 2.9, -10.0, 2 - 2.2 / 3],
            "fails",
        ),
        # 2.5 − 3, 2.5 − 2, 2.5 − 3: deviation 0.5774, standard error 1/3.
        ({"left": {"der": 0.5}, "right": "grace", "metric": "backbones"}, [-1 / 6], "within noise"),
        # The best other by seed: 69.8, 70.4, 71.1.
        ({"left": "grace", "right": "best", "metric": "average"}, [1.7 / 3], "holds"),
        ({"left": "foster", "right": "second"}, [-9.0], "fails"),
        # Last −9 + 10, deviation 1; Avg −9 + 0.73 fails.
        (SOME, [1.0, -9 + 2.2 / 3], "fails"),
        (SOME | {"over": "some"}, [1.0, -9 + 2.2 / 3], "within noise"),
    ],
)
def test_claims_by_hand(
    claim: dict[str, Any], means: list[float], verdict: str, make_record: MakeRecord
) -> None:
    found = judged(make_record, {"id": "X"} | claim)
    assert [line.judgement.mean for line in found.lines] == pytest.approx(means)
    assert found.verdict == verdict


@pytest.mark.parametrize(
    ("runs", "claim", "verdicts", "verdict"),
    [
        # Without the third seed it would hold.
        (2, {"left": "grace", "right": "der"}, ["not measured"], "not measured"),
        (0, {"left": "grace", "right": "der"}, ["not measured"], "not measured"),
        # The best other is not known for the third seed, although one other is.
        (2, {"left": "foster", "right": "best"}, ["not measured"], "not measured"),
        (2, {"pairs": FALLING}, ["holds", "not measured"], "not measured"),
        # A line that fails is worse than one that is not measured.
        (2, {"pairs": OTHERS}, ["fails", "not measured"], "fails"),
    ],
)
def test_a_claim_with_a_missing_run_is_not_measured(
    runs: int, claim: dict[str, Any], verdicts: list[str], verdict: str, make_record: MakeRecord
) -> None:
    numbers = {**THREE, "der": THREE["der"][:runs]}
    found = judged(make_record, {"id": "B"} | claim, numbers)
    assert [line.judgement.verdict for line in found.lines] == verdicts
    assert found.verdict == verdict
    table = claims_table([found])
    assert table.rows[-1][-1] == verdicts[-1]
    assert len(table.notes) == (2 if runs else 1)  # The numbers that are there are shown.


def test_the_paper_s_numbers_stand_beside_ours(make_record: MakeRecord) -> None:
    rows = rows_of("grace", "der", "foster")
    claims = [
        {"id": "M1", "left": "grace", "right": "der", "metric": "average", "slack": 0.2},
        {"id": "M2", "left": {"der": 0.5}, "right": "grace", "metric": "backbones"},
        {"id": "M5", "left": "grace", "right": "best"},
    ]
    results = made(make_record, THREE, rows=rows, claims=claims, paper="table-1")
    lines = [line for claim in judge_claims(results) for line in claim.lines]
    # Table 1, CIFAR-100 b0i10: 71.44 and 71.23; 4.60 M and 2.30 M of 0.46 M; 60.80 and 60.47.
    assert [line.paper for line in lines] == pytest.approx([0.41, 0.0, 0.33])


@pytest.mark.parametrize("place", ["best", "second"])
def test_nothing_is_first_among_some_of_the_rows(make_record: MakeRecord, place: str) -> None:
    study = {
        "rows": rows_of("grace", "der", "foster") | {"joint": {"method": "joint", "ranked": False}},
        "claims": [{"id": "M5", "left": "grace", "right": place}],
        "columns": ["last"],
        "paper": "table-1",
        "delta": "grace",
    }
    numbers = dict(THREE) | {"joint": [(80, 80, 1)] * 3}

    def shown_for(*chosen: str) -> tuple[str, float | None, str, str]:
        results = made(make_record, numbers, chosen=chosen, **study)
        [claim] = judge_claims(results)
        [table] = study_tables(results)
        return claim.verdict, claim.lines[0].paper, table.rows[-1][2], table.marks.get((0, 2), "")

    assert shown_for("grace", "foster") == ("not measured", None, "–", "")
    verdict, paper, lead, mark = shown_for("grace", "der", "foster")  # All that compete.
    assert (verdict, lead, mark) == ("holds", "+1.00", "best")
    # Table 1, CIFAR-100 b0i10: 60.80 against 60.47 of DER and 54.15 of FOSTER.
    assert paper == pytest.approx({"best": 0.33, "second": 6.65}[place])


GRID = {
    "method": "grace",
    "grid": {"method.threshold": [0.5, 0.6], "method.threshold_decay": [0.9]},
}


ONE = [(60, 70, 3)] * 3


@pytest.mark.parametrize(
    ("first", "other", "verdict"),
    [
        (ONE, ONE, "holds"),
        # More backbones at the higher threshold, and no accuracy for them.
        (ONE, [(60, 69, 4)] * 3, "fails"),
        (ONE, ONE[:2], "not measured"),
    ],
)
def test_a_grid_s_claims(
    first: list[Any], other: list[Any], verdict: str, make_record: MakeRecord
) -> None:
    claims = [
        {"id": "V1", "kind": "never-rises", "setting": "method.threshold"},
        {"id": "P1", "kind": "fewer-points"},
        {"id": "P3", "kind": "on-front", "left": "0.6/0.9"},
    ]
    numbers = {"0.5/0.9": first, "0.6/0.9": other}
    found = judge_claims(made(make_record, numbers, rows={"pairs": GRID}, claims=claims))
    assert [claim.verdict for claim in found] == [verdict] * 3
    assert all(claim.lines[0].judgement.count for claim in found)
    if verdict == "fails":
        assert found[0].lines[0].judgement.mean == -1.0
    rows = {"pairs": GRID, "more": {"method": "grace", "grid": {"memory.size": [9]}}}
    some = made(make_record, numbers, chosen=("pairs",), rows=rows, claims=claims[2:])
    assert judge_claims(some)[0].verdict == "not measured"
