"""Claims about saturation measures, on values set by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from grace.runs import RunRecord
from grace.settings.claims import ClaimSettings
from grace.settings.study import StudySettings
from grace.studies.made_study import MadeStudy
from grace.studies.measure_claims import measure_differences, measures_of, trends_of
from grace.studies.resolving import Found
from grace.studies.study_cells import Selection, study_cells
from grace.studies.study_claims import judge_claims
from grace.studies.study_figures import study_figures
from grace.studies.study_results import Results
from support.synthetic_records import MakeRecord
from support.synthetic_studies import with_measures

# Two ranges of three tasks: the second begins with the expansion at task 4.
VALUES = {
    "effective_rank": [0.3, 0.4, 0.5, 0.31, 0.42, 0.5],
    "fisher": [1.0, 2.0, 1.5, 4.0, 5.0, 6.0],
    "weight_norm": [6.0, 5.0, 4.0, 3.0, 2.0, 1.0],
}


@pytest.fixture
def record(make_record: MakeRecord) -> RunRecord:
    verdicts = ["start", "compress", "compress", "grow", "compress", "compress"]
    return with_measures(make_record("grace", task_sizes=(2,) * 6, verdicts=verdicts), VALUES)


def test_a_standard_error_is_no_measure(record: RunRecord) -> None:
    both = {**VALUES, "fisher_error": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}
    assert list(measures_of(with_measures(record, both))) == list(VALUES)


@pytest.fixture
def results(record: RunRecord) -> Results:
    study = StudySettings.model_validate(
        {
            "scales": {"small": {"protocols": {"p": {"experiment": "digits"}}, "seeds": [1]}},
            "rows": {"grace": {"method": "grace"}},
            "figures": ["measures", "accuracy"],
        }
    )
    cells = tuple(study_cells(study, Selection()))
    found = {cells[0].run: Found(record)}
    return Results(MadeStudy(study, Selection(), cells, found, {}, (), Path()))


def difference(kind: str, results: Results) -> float:
    claim = ClaimSettings.model_validate({"id": "S", "kind": kind, "left": "effective_rank"})
    [found], _ = measure_differences(claim, "p", results)
    return found


def test_the_measures_of_a_run(record: RunRecord) -> None:
    assert measures_of(record) == VALUES
    # Fisher: ranks 1, 3, 2 against 1, 2, 3 correlate by 1/2, then 1: mean 0.75.
    assert {name: trend.rise for name, trend in trends_of(record).items()} == pytest.approx(
        {"effective_rank": 1.0, "fisher": 0.75, "weight_norm": -1.0}
    )


def test_differences_by_hand(results: Results) -> None:
    assert difference("rises-most", results) == pytest.approx(0.25)
    assert difference("resets", results) == pytest.approx(0.5 - 0.31)
    # Deviation/mean by position: effective rank .005/.305, .01/.41, 0; Fisher, the only other one
    # that rises: 1.5/2.5, 1.5/3.5, 2.25/3.75.
    own = (0.005 / 0.305 + 0.01 / 0.41) / 3
    other = (0.6 + 1.5 / 3.5 + 0.6) / 3
    assert difference("agrees-best", results) == pytest.approx(other - own)


def test_a_run_without_measures_says_nothing(results: Results, make_record: MakeRecord) -> None:
    [cell] = results.made.cells
    plain = replace(results.made, found={cell.run: Found(make_record("grace", 2))})
    claim = ClaimSettings.model_validate({"id": "S", "kind": "resets", "left": "effective_rank"})
    assert measure_differences(claim, "p", Results(plain))[0] == []


def test_a_measure_claim_with_a_missing_run_is_not_measured(results: Results) -> None:
    claim = {"id": "S", "kind": "rises-most", "left": "effective_rank"}
    raw = results.made.study.model_dump() | {"claims": [claim]}

    def verdict(seeds: list[int]) -> str:
        raw["scales"]["small"]["seeds"] = seeds
        study = StudySettings.model_validate(raw)
        cells = tuple(study_cells(study, Selection()))
        [found] = judge_claims(Results(replace(results.made, study=study, cells=cells)))
        assert found.lines[0].judgement is not None
        return found.verdict

    assert [verdict([1]), verdict([1, 2])] == ["holds", "not measured"]


def test_a_panel_for_each_measure_with_the_expansion(results: Results) -> None:
    panels = study_figures(results)["measures"]
    assert [panel.title for panel in panels] == ["effective rank", "fisher", "weight norm"]
    assert panels[0].series[0].y == VALUES["effective_rank"]
    assert panels[0].dividers == [3.5]
