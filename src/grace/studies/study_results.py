"""The numbers of a study by row, protocol, seed and metric, and those that the paper prints."""

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import final

from grace.runs import RunRecord
from grace.settings.study import RowSettings
from grace.studies.groups import Spread, spread
from grace.studies.made_study import MadeStudy
from grace.studies.paper import paper_numbers, place_in_paper, row_in_paper
from grace.studies.resolving import Found
from grace.studies.study_cells import StudyCell, parent_of, scale_name, scale_of, stands
from grace.studies.tables import Column

_PAPER_UNITS = {"cifar100": 0.46, "imagenet100": 11.17}
"""Millions of parameters of a backbone, by which the paper counts and from which it truncates."""


def _memory_size(record: RunRecord) -> float | None:
    memory = record.info.config.get("memory")
    size = memory.get("size") if isinstance(memory, dict) else None
    return float(size) if isinstance(size, int) else None


def _bytes(record: RunRecord) -> float | None:
    """Return the bytes that memory-aligned runs share: backbones, and a full memory of images."""
    size, dataset = _memory_size(record), record.info.dataset
    if size is None or dataset is None:
        return None
    channels, height, width = dataset.shape
    weights = 4 * record.tasks[-1].parameters.backbones
    return (weights + size * channels * height * width) / 1e6


def _old(record: RunRecord) -> float | None:
    accuracy = record.tasks[-1].accuracy
    return accuracy.old if accuracy else None


def _new(record: RunRecord) -> float | None:
    accuracy = record.tasks[-1].accuracy
    return accuracy.new if accuracy else None


METRICS: Mapping[str, Column] = {
    column.key: column
    for column in (
        Column("last", "Last", lambda record: record.last, "%"),
        Column("average", "Avg", lambda record: record.average, "%"),
        Column("forgetting", "Forgetting", lambda record: record.forgetting, "points"),
        Column("old", "Old", _old, "%"),
        Column("new", "New", _new, "%"),
        Column("task_aware_last", "TA Last", lambda record: record.task_aware_last, "%"),
        Column("backbones", "Backbones", lambda record: record.tasks[-1].backbones, digits=0),
        Column("parameters", "#P", lambda r: r.tasks[-1].parameters.backbones / 1e6, "M"),
        Column("exemplars", "M", _memory_size, digits=0),
        Column("megabytes", "Backbones and memory", _bytes, "MB", digits=3),
        Column("seconds", "Time", lambda record: record.seconds, "s", digits=0),
    )
}
"""The numbers that a study can show and compare, in the paper's units."""


@final
class Results:
    """The numbers of a made study."""

    def __init__(self, made: MadeStudy) -> None:
        self.made = made
        self.scale = scale_of(made.study, made.selection.scale)

    @cached_property
    def _cells(self) -> dict[tuple[str, str, int], StudyCell]:
        return {(cell.row, cell.protocol, cell.seed): cell for cell in self.made.cells}

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """Names of the rows, those of grids included."""
        return tuple(dict.fromkeys(cell.row for cell in self.made.cells))

    @cached_property
    def protocols(self) -> tuple[str, ...]:
        """Names of the protocols."""
        return tuple(dict.fromkeys(cell.protocol for cell in self.made.cells))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds."""
        return tuple(dict.fromkeys(cell.seed for cell in self.made.cells))

    def settings(self, row: str) -> RowSettings:
        """Return the settings of a row, as the study's file has them."""
        return self.made.study.rows[parent_of(self.made.study, row)]

    def label(self, row: str) -> str:
        """Return the name of a row in tables."""
        return self.settings(row).label or row

    def ranked(self, protocol: str) -> list[str]:
        """Return the rows that compete in a protocol."""
        return [row for row in self.rows_in(protocol) if self.settings(row).ranked]

    def lacks_rivals(self, protocol: str) -> bool:
        """Return True if rows were chosen, and others that compete in a protocol were not."""
        return any(row.ranked for row in self._not_chosen(protocol))

    def lacks_points(self, protocol: str) -> bool:
        """Return True if rows were chosen, and others that are grids in a protocol were not."""
        return any(row.grid is not None for row in self._not_chosen(protocol))

    def _not_chosen(self, protocol: str) -> list[RowSettings]:
        study, selection = self.made.study, self.made.selection
        scale = scale_name(study, selection.scale)
        return [
            row
            for name, row in study.rows.items()
            if selection.rows and name not in selection.rows and stands(row, scale, protocol)
        ]

    def has_cell(self, row: str, protocol: str) -> bool:
        """Return True if the row stands in the protocol's table."""
        return any((row, protocol, seed) in self._cells for seed in self.seeds)

    def rows_in(self, protocol: str) -> list[str]:
        """Return the rows that stand in a protocol's table."""
        return [row for row in self.rows if self.has_cell(row, protocol)]

    def is_complete(self, rows: Iterable[str], protocol: str) -> bool:
        """Return True if all runs of some rows in a protocol are there."""
        return all(self.num_runs(row, protocol) == len(self.seeds) for row in rows)

    def found(self, row: str, protocol: str, seed: int) -> Found | None:
        """Return the finished run of a cell; ``None``: it failed or was not made.

        Args:
            row: name of the row.
            protocol: name of the protocol.
            seed: the seed.
        """
        cell = self._cells.get((row, protocol, seed))
        return self.made.found.get(cell.run) if cell else None

    def value(self, row: str, protocol: str, seed: int, key: str) -> float | None:
        """Return the number of a cell; ``None`` if it is not known.

        Args:
            row: name of the row.
            protocol: name of the protocol.
            seed: the seed.
            key: key of the metric.
        """
        found = self.found(row, protocol, seed)
        return METRICS[key].value(found.record) if found else None

    def over_seeds(self, row: str, protocol: str, key: str) -> Spread | None:
        """Summarise a number over the seeds that finished; ``None``: no seed did.

        Args:
            row: name of the row.
            protocol: name of the protocol.
            key: key of the metric.
        """
        values = (self.value(row, protocol, seed, key) for seed in self.seeds)
        return spread(value for value in values if value is not None)

    def mean(self, key: str) -> Callable[[str, str], float | None]:
        """Return a function of row and protocol that gives the mean of a metric."""

        def mean(row: str, protocol: str) -> float | None:
            found = self.over_seeds(row, protocol, key)
            return found.mean if found else None

        return mean

    def place_in_paper(self, protocol: str) -> tuple[str, str, str]:
        """Return the paper's table, protocol and data set; no table: the first one is empty."""
        given = self.scale.protocols[protocol].paper
        table, name, dataset = place_in_paper(self.made.study.paper, given, protocol)
        if table and not dataset:
            dataset = paper_numbers().table(table).columns[0].dataset
        return table, name, dataset

    def paper(self, row: str, protocol: str, key: str) -> float | None:
        """Return the number that the paper prints; ``None``: it has none.

        Backbones are parameters by those of one backbone, where that is a whole number.

        Args:
            row: name of the row.
            protocol: name of the protocol.
            key: key of the metric.
        """
        table, name, dataset = self.place_in_paper(protocol)
        if not table:
            return None
        table, line = row_in_paper(table, self.settings(row).paper, row)
        numbers = paper_numbers()
        if key != "backbones":
            return numbers.value(table, line, name, key, dataset)
        parameters = numbers.value(table, line, name, "parameters", dataset)
        unit = _PAPER_UNITS[dataset]
        count = round(parameters / unit) if parameters else 0
        exact = parameters is not None and abs(parameters - count * unit) < 0.015 * parameters
        return float(count) if exact else None

    def num_runs(self, row: str, protocol: str) -> int:
        """Return the number of finished runs of a row."""
        return sum(self.found(row, protocol, seed) is not None for seed in self.seeds)

    def best_other(self, row: str, protocol: str, key: str) -> float | None:
        """Return the highest mean of the other ranked rows; ``None``: it is not known.

        Args:
            row: name of the row that is compared with them.
            protocol: name of the protocol.
            key: key of the metric.
        """
        if self.lacks_rivals(protocol):
            return None
        mean = self.mean(key)
        others = [mean(other, protocol) for other in self.ranked(protocol) if other != row]
        return max((value for value in others if value is not None), default=None)
