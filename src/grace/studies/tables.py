"""Comparison tables over many runs, as Markdown, CSV and LaTeX."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import final

from grace.base.words import counted, spreadsheet
from grace.runs import RunRecord, TaskRecord
from grace.studies.groups import Group, Spread, group_records
from grace.studies.sheet import Entry, Sheet


@final
@dataclass(frozen=True)
class Column:
    """One column of measured values; it shows ``value / scale`` with ``digits`` decimals."""

    key: str
    title: str
    value: Callable[[RunRecord], float | None]
    unit: str = ""
    digits: int = 2
    scale: float = 1.0

    @property
    def heading(self) -> str:
        """Title with unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


@final
@dataclass(frozen=True)
class Row:
    """One group of runs and its cells; a cell is ``None`` if its value is unknown."""

    group: Group
    cells: tuple[Spread | None, ...]


@final
@dataclass(frozen=True)
class ComparisonTable:
    """Groups of runs against measured columns."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on unfinished and repeated runs, other data, and tasks of one class."""
        unfinished = [
            f"{row.group.experiment}/{row.group.label}: {left} of {len(row.group.records)} runs "
            "unfinished and left out"
            for row in self.rows
            if (left := len(row.group.records) - len(row.group.complete))
        ]
        return (*unfinished, *self._repeated(), *self._other_data(), *self._without_choice())

    def _repeated(self) -> Iterator[str]:
        for group in (row.group for row in self.rows):
            if group.repetitions:
                yield (
                    f"{group.experiment}/{group.label}: "
                    f"{counted(len(group.repetitions), 'repetition')} of the same run left out "
                    "(only the newest finished one counts)"
                )

    def _other_data(self) -> Iterator[str]:
        found = [row.group.experiment for row in self.rows if row.group.has_other_data]
        for experiment in dict.fromkeys(found):
            yield f"{experiment}: rows of other data have other protocols; do not compare them"

    def _without_choice(self) -> Iterator[str]:
        """Yield notes on one-class tasks; one note per experiment if all its rows agree."""
        if not any(column.key == "task_aware_last" for column in self.columns):
            return
        for experiment, members in groupby(self.rows, key=lambda row: row.group.experiment):
            lone = {
                row.group.label: tuple(sorted({n for r in runs for n in r.lone_class_tasks}))
                for row in members
                if (runs := row.group.complete)
            }
            if len(set(lone.values())) == 1:
                lone = {"": next(iter(lone.values()))}
            for label, tasks in lone.items():
                if tasks:
                    where = f"{experiment}/{label}" if label else experiment
                    yield f"{where}: {lone_class_note(tasks)}"


def lone_class_note(tasks: Sequence[int]) -> str:
    """Explain that tasks of one class have 100 % task-aware accuracy by construction.

    Args:
        tasks: numbers of these tasks, ascending, at least one.
    """
    several, in_a_row = len(tasks) > 1, len(tasks) == tasks[-1] - tasks[0] + 1 > 2
    which = f"{tasks[0]} to {tasks[-1]}" if in_a_row else ", ".join(str(number) for number in tasks)
    return (
        f"task{'s' if several else ''} {which} {'have' if several else 'has'} one class, so that "
        "task-aware (TA) accuracy there is 100 % by construction"
    )


def comparison_table(records: Sequence[RunRecord]) -> ComparisonTable:
    """Summarise runs by experiment, method, settings and data; mean and deviation over seeds.

    Accuracies are the primary classifier's, at the end of the stream
    (docs/protocols.md#metrics); the nearest-mean classifier has columns of its own where a run has
    it beside the primary one. Task-aware numbers (TA) have columns of their own where a run has
    them.
    """
    groups = group_records(records)
    columns = _columns(records)
    return ComparisonTable(
        columns,
        tuple(
            Row(group, tuple(group.over_runs(column.value) for column in columns))
            for group in groups
        ),
    )


def _columns(records: Sequence[RunRecord]) -> tuple[Column, ...]:
    columns = [
        Column("last", "Last", lambda record: record.last, "%"),
        Column("average", "Avg", lambda record: record.average, "%"),
        Column("forgetting", "Forgetting", lambda record: record.forgetting, "points"),
        Column("backward_transfer", "BWT", lambda record: record.backward_transfer, "points"),
    ]
    if any(record.primary != "nearest_mean" and _nearest_mean(record) for record in records):
        columns.append(Column("last_nearest_mean", "Last NME", _nearest_mean, "%"))
    if any(has_task_aware(record) for record in records):
        columns += _TASK_AWARE
    weights, exemplars = _final(lambda t: t.bytes.weights), _final(lambda t: t.bytes.exemplars)
    return (
        *columns,
        Column("backbones", "Backbones", _final(lambda t: t.backbones), digits=0),
        Column(
            "parameters_backbones",
            "Backbone parameters",
            _final(lambda t: t.parameters.backbones),
            "M",
            scale=1e6,
        ),
        Column(
            "parameters", "All parameters", _final(lambda t: t.parameters.total), "M", scale=1e6
        ),
        _byte_column("bytes_weights", "Weights", weights, records),
        _byte_column("bytes_exemplars", "Exemplars", exemplars, records),
        Column("seconds", "Time", lambda record: record.seconds, "s", digits=1),
    )


_TASK_AWARE = (
    Column("task_aware_last", "TA Last", lambda record: record.task_aware_last, "%"),
    Column("task_aware_average", "TA Avg", lambda record: record.task_aware_average, "%"),
    Column(
        "task_aware_forgetting",
        "TA Forgetting",
        lambda record: record.task_aware_forgetting,
        "points",
    ),
)


def has_task_aware(record: RunRecord) -> bool:
    """Return True if a run has task-aware numbers; older records have none."""
    return any(value is not None for value in record.task_aware_accuracies())


def _nearest_mean(record: RunRecord) -> float | None:
    return record.accuracies("nearest_mean")[-1] if record.tasks else None


def _final(value: Callable[[TaskRecord], float]) -> Callable[[RunRecord], float | None]:
    return lambda record: value(record.tasks[-1]) if record.tasks else None


def _byte_column(
    key: str,
    title: str,
    value: Callable[[RunRecord], float | None],
    records: Sequence[RunRecord],
) -> Column:
    largest = max((value(record) or 0 for record in records), default=0)
    unit, scale = ("MB", 1e6) if largest >= 1e6 else ("kB", 1e3)
    return Column(key, title, value, unit, scale=scale)


def format_cell(cell: Spread | None, column: Column) -> str:
    """Return a cell as :func:`format_spread` does, in the column's unit."""
    return format_spread(cell, column.digits, column.scale)


def format_spread(cell: Spread | None, digits: int, scale: float = 1.0) -> str:
    """Return a rounded cell: "57.39" for one run, "57.39 ± 0.41" for several, "–" for ``None``.

    A deviation of 0 is not shown.

    Args:
        cell: mean and deviation.
        digits: decimals; a deviation has at least one.
        scale: what both are divided by.
    """
    if cell is None:
        return "–"
    mean, deviation = cell.mean / scale, (cell.deviation or 0.0) / scale
    digits = max(digits, 1) if deviation else digits
    shown = f"{mean:.{digits}f}"
    return f"{shown} ± {deviation:.{digits}f}" if deviation else shown


def display_rows(table: ComparisonTable) -> list[list[str]]:
    """Return the cells as shown, row by row, in the order of :func:`headings`."""
    return [
        [
            row.group.experiment,
            row.group.label,
            str(len(row.group.complete)),
            *(
                format_cell(cell, column)
                for cell, column in zip(row.cells, table.columns, strict=True)
            ),
        ]
        for row in table.rows
    ]


def headings(table: ComparisonTable) -> list[str]:
    """Return the headings of all columns, including those that name the group."""
    return ["Experiment", "Method", "Runs", *(column.heading for column in table.columns)]


def sheet(table: ComparisonTable) -> Sheet:
    """Return the table as it is shown."""
    rows = [tuple(Entry(cell) for cell in row) for row in display_rows(table)]
    return Sheet(tuple(headings(table)), tuple(rows), table.notes, num_names=2)


def to_markdown(table: ComparisonTable) -> str:
    """Return the table as GitHub Markdown with rounded values."""
    return sheet(table).to_markdown()


def to_csv(table: ComparisonTable) -> str:
    """Return the table as CSV: separate columns of means and deviations, not rounded or scaled.

    Names that a spreadsheet would take for a formula get an apostrophe; numbers are exact.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    keys = [f"{column.key}_{part}" for column in table.columns for part in ("mean", "std")]
    writer.writerow(["experiment", "method", "variant", "runs", *keys])
    for row in table.rows:
        numbers: list[float | str] = []
        for cell in row.cells:
            numbers.append("" if cell is None else cell.mean)
            numbers.append("" if cell is None or cell.deviation is None else cell.deviation)
        group = row.group
        names = [spreadsheet(text) for text in (group.experiment, group.method, group.variant)]
        writer.writerow([*names, len(group.complete), *numbers])
    return out.getvalue()


def to_latex(table: ComparisonTable) -> str:
    r"""Return the table as a LaTeX ``tabular`` with booktabs rules; all texts are escaped."""
    return sheet(table).to_latex()
