"""Studies whose runs have numbers set by hand."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from grace.runs.model import RunRecord
from grace.studies.plan import Found, Selection, study_cells
from grace.studies.results import StudyResult
from grace.studies.schema import StudySettings
from support.synthetic_records import MakeRecord

SEEDS = count(1)
Numbers = Mapping[str, Sequence[tuple[float, float, int]]]
"""Last, Avg and backbones by row, one for each seed."""


def with_numbers(record: RunRecord, last: float, average: float, backbones: int) -> RunRecord:
    """A run of two tasks with these numbers."""
    tasks = []
    for task, accuracy in zip(record.tasks, (2 * average - last, last), strict=True):
        entry = task.classifiers["linear"].model_copy(update={"all": accuracy})
        update = {"classifiers": {"linear": entry}, "backbones": backbones}
        tasks.append(task.model_copy(update=update))
    return replace(record, tasks=tuple(tasks))


def with_measures(record: RunRecord, values: Mapping[str, Sequence[float]]) -> RunRecord:
    """A run with these saturation measures by name, one for each task."""
    tasks = [
        task.model_copy(update={"measures": {name: v[task.task - 1] for name, v in values.items()}})
        for task in record.tasks
    ]
    return replace(record, tasks=tuple(tasks))


def made(
    make_record: MakeRecord,
    numbers: Numbers,
    replayed: Collection[tuple[str, int]] = (),
    chosen: tuple[str, ...] = (),
    **study: Any,
) -> StudyResult:
    """A study and what its runs gave.

    Args:
        make_record: makes a record.
        numbers: last accuracy, average accuracy and backbones by row, one for each seed.
        replayed: row and seed of the runs that another one stands for.
        chosen: the rows that are made; empty: all.
        study: settings of the study.
    """
    settings = StudySettings.model_validate(
        {
            "scales": {
                "small": {"protocols": {"b0i10": {"experiment": "digits"}}, "seeds": [1, 2, 3]}
            },
            "rows": {row: {"method": "der"} for row in numbers},
        }
        | study
    )
    selection = Selection(rows=chosen)
    cells = study_cells(settings, selection)
    record = make_record("der", next(SEEDS), task_sizes=(5, 5))
    found = {}
    for cell in cells:
        known = numbers[cell.row]
        if cell.seed <= len(known):
            own = with_numbers(record, *known[cell.seed - 1])
            found[cell.run] = Found(own, is_replayed=(cell.row, cell.seed) in replayed)
    # Rows of equal settings share a run: each gets one of its own.
    assert len({cell.run for cell in cells}) == len(cells)
    return StudyResult(settings, selection, cells, found)
