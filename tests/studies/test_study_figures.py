"""Lines of a study's figures, from records with numbers set by hand."""

from pathlib import Path

import pytest

from grace.settings.study import StudySettings
from grace.studies.made_study import MadeStudy
from grace.studies.resolving import Found
from grace.studies.study_cells import Selection, study_cells
from grace.studies.study_figures import study_figures
from grace.studies.study_results import Results
from support.synthetic_records import MakeRecord


def results(number: int, make_record: MakeRecord) -> Results:
    """Return a study of some rows, whose runs have equal records, and one that is not ranked."""
    study = StudySettings.model_validate(
        {
            "scales": {"small": {"protocols": {"p": {"experiment": "digits"}}, "seeds": [1, 2]}},
            "rows": {
                "held": {"method": "grace", "ranked": False},
                **{
                    f"row-{place}": {"method": "grace", "set": [f"memory.size={50 + place}"]}
                    for place in range(number)
                },
            },
            "figures": ["accuracy", "backbones", "protocols"],
        }
    )
    cells = tuple(study_cells(study, Selection()))
    records = {seed: Found(make_record("grace", seed=seed)) for seed in (1, 2)}
    found = {cell.run: records[cell.seed] for cell in cells}
    return Results(MadeStudy(study, Selection(), cells, found, {}, (), Path()))


@pytest.mark.parametrize(
    ("number", "titles"),
    [(11, ["p", "p", "", ""]), (12, ["p", "p", "12 of 13 rows", "12 of 13 rows"])],
)
def test_twelve_rows_are_drawn(number: int, titles: list[str], make_record: MakeRecord) -> None:
    figures = study_figures(results(number, make_record))
    panels = [panel for panels in figures.values() for panel in panels]
    assert [panel.title for panel in panels] == titles
    # Only the figures over protocols draw the row that is not ranked.
    assert [len(panel.series) for panel in panels] == [number, number, 12, 12]


def test_a_figure_says_how_many_rows_it_leaves_out(make_record: MakeRecord) -> None:
    over_tasks = study_figures(results(13, make_record))["accuracy"][0]
    assert over_tasks.title == "p: 12 of 13 rows"
    assert [one.label for one in over_tasks.series] == [f"row-{place}" for place in range(12)]
