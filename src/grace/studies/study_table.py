"""The table of a study: our means beside the paper's numbers, protocol by protocol."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from grace.base.words import in_percent, spreadsheet
from grace.studies.groups import Spread
from grace.studies.origins import REPLAYED, origin
from grace.studies.paper import row_in_paper
from grace.studies.sheet import Entry, Mark, Sheet
from grace.studies.study_results import METRICS, Results
from grace.studies.tables import Column, format_cell

_RANKED = frozenset({"last", "average", "forgetting"})
"""The metrics whose best values are marked."""
_MARKS: tuple[Mark, ...] = ("best", "second")


@final
@dataclass(frozen=True)
class ProtocolTable:
    """The rows of one protocol against the study's columns.

    Args:
        protocol: name of the protocol.
        experiment: its experiment.
        columns: the metrics.
        rows: names of the rows.
        ours: mean and deviation by row and column; ``None``: not measured.
        paper: printed numbers by row and column; ``None``: the paper has none.
    """

    protocol: str
    experiment: str
    columns: tuple[Column, ...]
    rows: tuple[str, ...]
    ours: tuple[tuple[Spread | None, ...], ...]
    paper: tuple[tuple[float | None, ...], ...]

    def has_paper(self, column: int) -> bool:
        """Return True if the paper has a number in a column."""
        return any(row[column] is not None for row in self.paper)


def protocol_tables(results: Results) -> list[ProtocolTable]:
    """Return a table for each protocol of a study."""
    columns = tuple(METRICS[key] for key in results.made.study.columns)
    tables = []
    for protocol in results.protocols:
        rows = tuple(results.rows_in(protocol))
        keys = [column.key for column in columns]
        tables.append(
            ProtocolTable(
                protocol,
                results.scale.protocols[protocol].experiment,
                columns,
                rows,
                tuple(tuple(results.over_seeds(r, protocol, key) for key in keys) for r in rows),
                tuple(tuple(results.paper(r, protocol, key) for key in keys) for r in rows),
            )
        )
    return tables


def shown(table: ProtocolTable, results: Results) -> Sheet:
    """Return a protocol's table as it is shown: best bold, second underlined, the paper's beside.

    Rows whose runs are replayed have a mark, and a note says what it means.

    Args:
        table: the table.
        results: the study's numbers.
    """
    marks = [_marks(table, results, place) for place in range(len(table.columns))]
    headings = ["Row", "Runs"]
    for place, column in enumerate(table.columns):
        headings += [column.heading, *(["paper"] if table.has_paper(place) else [])]
    rows = []
    for number, row in enumerate(table.rows):
        runs = str(results.num_runs(row, table.protocol))
        entries = [Entry(_name(row, table, results)), Entry(runs)]
        for place, column in enumerate(table.columns):
            ours = format_cell(table.ours[number][place], column)
            entries.append(Entry(ours, marks[place][number]))
            if table.has_paper(place):
                entries.append(Entry(_printed(table.paper[number][place], column)))
        rows.append(tuple(entries))
    delta = _delta(table, results)
    return Sheet(tuple(headings), (*rows, *([delta] if delta else [])), _notes(table, results))


def to_csv(tables: Sequence[ProtocolTable], results: Results) -> str:
    """Return all numbers of a study, a line for each row, protocol and metric, not rounded."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["protocol", "experiment", "row", "metric", "mean", "std", "runs", "paper"])
    for table in tables:
        for number, row in enumerate(table.rows):
            for place, column in enumerate(table.columns):
                ours, paper = table.ours[number][place], table.paper[number][place]
                writer.writerow(
                    [
                        *map(spreadsheet, (table.protocol, table.experiment, row, column.key)),
                        "" if ours is None else ours.mean,
                        "" if ours is None or ours.deviation is None else ours.deviation,
                        results.num_runs(row, table.protocol),
                        "" if paper is None else paper,
                    ]
                )
    return out.getvalue()


def _name(row: str, table: ProtocolTable, results: Results) -> str:
    return origin(results, [row], table.protocol).marked(results.label(row))


def _printed(value: float | None, column: Column) -> str:
    return in_percent(value, column.digits)


def _marks(table: ProtocolTable, results: Results, place: int) -> list[Mark]:
    """Mark the best and the second best mean of a column; equal values share a mark."""
    key = table.columns[place].key
    is_ranked = key in _RANKED and not results.lacks_rivals(table.protocol)
    ranked = set(results.ranked(table.protocol)) if is_ranked else set()
    means: list[float | None] = []
    for row, cells in zip(table.rows, table.ours, strict=True):
        cell = cells[place] if row in ranked else None
        means.append(None if cell is None else -cell.mean if key == "forgetting" else cell.mean)
    order = sorted({value for value in means if value is not None}, reverse=True)
    names: dict[float | None, Mark] = {}
    names.update(zip(order, _MARKS, strict=False))
    return [names.get(value, "") for value in means]


def _delta(table: ProtocolTable, results: Results) -> tuple[Entry, ...] | None:
    """Return the last row: the lead over the best other row, and parameters in percent."""
    study = results.made.study
    if not study.delta or study.delta not in table.rows:
        return None
    own, entries = study.delta, [Entry("Δ"), Entry("")]
    for place, column in enumerate(table.columns):
        mean = results.mean(column.key)
        ours, text = mean(own, table.protocol), "–"
        if column.key in ("last", "average"):
            other = results.best_other(own, table.protocol, column.key)
            if ours is not None and other is not None:
                text = f"{ours - other:+.2f}"
        elif column.key in ("parameters", "backbones") and study.delta_against:
            other = mean(study.delta_against, table.protocol)
            if ours is not None and other:
                text = f"{100 * (ours / other - 1):+.0f} %"
        entries += [Entry(text), *([Entry("")] if table.has_paper(place) else [])]
    return tuple(entries)


def _notes(table: ProtocolTable, results: Results) -> tuple[str, ...]:
    notes = []
    missing = [
        results.label(row)
        for row in table.rows
        if results.num_runs(row, table.protocol) < len(results.seeds)
    ]
    if missing:
        notes.append(f"not all runs are finished: {', '.join(missing)}")
    if results.lacks_rivals(table.protocol):
        notes.append("not all rows that compete were chosen: none is marked as best")
    if any(table.has_paper(place) for place in range(len(table.columns))):
        first, name, dataset = results.place_in_paper(table.protocol)
        used = {row_in_paper(first, results.settings(row).paper, row)[0] for row in results.rows}
        tables = sorted(each.replace("-", " ").capitalize() for each in used)
        same = results.scale.same_data and not results.made.selection.overrides
        how = (
            "of one run each; the same data and settings"
            if same
            else "of other data or settings than ours: compare the order of rows, not the numbers"
        )
        notes.append(f"paper: printed numbers of {', '.join(tables)}, {dataset} {name}, {how}")
    if origin(results, table.rows, table.protocol).replayed:
        notes.append(REPLAYED)
    return tuple(notes)
