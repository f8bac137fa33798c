"""The numbers of a study by protocol, row and seed, and those that the paper prints."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, final

from grace.runs.model import RunRecord
from grace.studies.cells import RunSpec, Selection, StudyCell, scale_name, stands
from grace.studies.frame import METRICS, numbers_of
from grace.studies.paper import paper_value, place_in_paper, row_in_paper
from grace.studies.plan import Found
from grace.studies.schema import RowSettings, StudySettings

if TYPE_CHECKING:
    import pandas as pd

REPLAYED = (
    "replayed: not trained, because a finished run that took the same decisions at every task "
    "stands for it (1 of 3 replayed: in one of three runs)"
)
_KEYS = ["protocol", "row", "seed"]


@final
@dataclass(frozen=True)
class StudyResult:
    """A study after its runs.

    Args:
        study: the study.
        selection: the part of it.
        cells: cells of its tables.
        found: records of the finished runs.
        failures: reasons of the failed runs, by the name of a cell.
        notes: what a reader of its tables must know.
        files: tables, figures and page; empty if no run finished.
    """

    study: StudySettings
    selection: Selection
    cells: tuple[StudyCell, ...]
    found: Mapping[RunSpec, Found]
    failures: Mapping[str, str]
    notes: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    @property
    def records(self) -> tuple[RunRecord, ...]:
        """The records of all cells, each once."""
        runs = [self.found[cell.run].record for cell in self.cells if cell.run in self.found]
        return tuple({record.directory: record for record in runs}.values())


@final
class Results:
    """The numbers of a study that was made."""

    def __init__(self, made: StudyResult) -> None:
        self.made = made
        self.at = scale_name(made.study, made.selection.scale)
        self.scale = made.study.scales[self.at]
        self.protocols = tuple(dict.fromkeys(cell.protocol for cell in made.cells))
        self.rows = tuple(dict.fromkeys(cell.row for cell in made.cells))
        self.seeds = tuple(dict.fromkeys(cell.seed for cell in made.cells))
        self._found = {(c.protocol, c.row, c.seed): made.found.get(c.run) for c in made.cells}

    @cached_property
    def numbers(self) -> "pd.DataFrame":
        """Every metric by protocol, row and seed; NaN where a run is missing."""
        import pandas as pd

        index = pd.MultiIndex.from_tuples(self._found, names=_KEYS)
        records = (one.record if one else None for one in self._found.values())
        return numbers_of(records).set_index(index).sort_index()

    @cached_property
    def paper(self) -> "pd.DataFrame":
        """What the paper prints, in the same form with one seed, 0; NaN where it has nothing."""
        import pandas as pd

        places = list(dict.fromkeys((protocol, row) for protocol, row, _ in self._found))
        lines = [[self._printed(*place, key) for key in METRICS] for place in places]
        index = pd.MultiIndex.from_tuples([(*place, 0) for place in places], names=_KEYS)
        return pd.DataFrame(lines, index=index, columns=list(METRICS), dtype=float).sort_index()

    @cached_property
    def means(self) -> "pd.DataFrame":
        """The mean of every metric over the finished seeds, by protocol and row."""
        return self.numbers.groupby(_KEYS[:2], sort=False).mean()

    @cached_property
    def deviations(self) -> "pd.DataFrame":
        """The standard deviation (n − 1) of every metric, by protocol and row."""
        return self.numbers.groupby(_KEYS[:2], sort=False).std()

    def settings(self, row: str) -> RowSettings:
        """Return the settings of a row, as the study's file has them."""
        return self.made.study.rows[self.made.study.points[row][0]]

    def label(self, row: str) -> str:
        """Return the name of a row in tables."""
        return self.settings(row).label or row

    def rows_in(self, protocol: str) -> list[str]:
        """Return the rows that stand in a protocol's table."""
        return [row for row in self.rows if (protocol, row, self.seeds[0]) in self._found]

    def ranked(self, protocol: str) -> list[str]:
        """Return the rows that compete in a protocol."""
        return [row for row in self.rows_in(protocol) if self.settings(row).ranked]

    def grid_rows(self, protocol: str) -> list[str]:
        """Return the rows of grids that stand in a protocol."""
        return [row for row in self.rows_in(protocol) if self.settings(row).grid is not None]

    def lacks_rivals(self, protocol: str) -> bool:
        """Return True if rows were chosen, and others that compete in a protocol were not."""
        return any(row.ranked for row in self._not_chosen(protocol))

    def lacks_points(self, protocol: str) -> bool:
        """Return True if rows were chosen, and others that are grids in a protocol were not."""
        return any(row.grid is not None for row in self._not_chosen(protocol))

    def _not_chosen(self, protocol: str) -> list[RowSettings]:
        chosen = self.made.selection.rows
        rows = self.made.study.rows.items()
        return [
            row
            for name, row in rows
            if chosen and name not in chosen and stands(row, self.at, protocol)
        ]

    def found(self, row: str, protocol: str) -> list[Found]:
        """Return the finished runs of a row, in the order of seeds."""
        runs = (self._found.get((protocol, row, seed)) for seed in self.seeds)
        return [one for one in runs if one is not None]

    def is_complete(self, rows: Iterable[str], protocol: str) -> bool:
        """Return True if all runs of some rows in a protocol are there."""
        return all(len(self.found(row, protocol)) == len(self.seeds) for row in rows)

    def origin(self, rows: Iterable[str], protocol: str) -> tuple[int, int]:
        """Count the replayed runs of some rows, and all of them."""
        known = [one for row in rows for one in self.found(row, protocol)]
        return sum(one.is_replayed for one in known), len(known)

    def marked(self, row: str, protocol: str) -> str:
        """Return a row's name with its mark: "a", "a (2 of 3 replayed)" or "a (replayed)"."""
        replayed, runs = self.origin([row], protocol)
        some = f"{replayed} of {runs} " if replayed < runs else ""
        return f"{self.label(row)} ({some}replayed)" if replayed else self.label(row)

    def place_in_paper(self, protocol: str) -> tuple[str, str, str]:
        """Return the paper's table, protocol and data set; no table: the first one is empty."""
        given = self.scale.protocols[protocol].paper
        return place_in_paper(self.made.study.paper, given, protocol)

    def _printed(self, protocol: str, row: str, key: str) -> float | None:
        table, name, dataset = self.place_in_paper(protocol)
        if not table:
            return None
        table, line = row_in_paper(table, self.settings(row).paper, row)
        return paper_value(table, line, name, key, dataset)
