"""A study after its runs. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from grace.runs import RunRecord
from grace.settings.study import StudySettings
from grace.studies.resolving import Found
from grace.studies.study_cells import RunSpec, Selection, StudyCell


@final
@dataclass(frozen=True)
class MadeStudy:
    """A study after its runs.

    Args:
        study: the study.
        selection: the part of it.
        cells: cells of its table.
        found: records of the finished runs.
        failures: reasons of the failed runs, by the name of a cell.
        notes: what a reader of its tables must know.
        directory: folder of its files.
        at_once: runs at a time; ``None`` if there was nothing to make.
    """

    study: StudySettings
    selection: Selection
    cells: tuple[StudyCell, ...]
    found: Mapping[RunSpec, Found]
    failures: Mapping[str, str]
    notes: tuple[str, ...]
    directory: Path
    at_once: int | None = None

    @property
    def records(self) -> tuple[RunRecord, ...]:
        """The records of all cells, each once."""
        runs = [self.found[cell.run].record for cell in self.cells if cell.run in self.found]
        return tuple({record.directory: record for record in runs}.values())
