"""The table of saturation measures: rise, reset and agreement of each, over seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from grace.studies.groups import Spread, spread
from grace.studies.measure_claims import trends_of
from grace.studies.sheet import Entry, Sheet
from grace.studies.study_results import Results
from grace.studies.tables import format_spread
from grace.studies.trends import Trend

MEASURE_HEADINGS = (
    *("protocol", "row", "measure", "runs", "rise_mean", "rise_std", "falls", "expansions"),
    *("runs_that_reset", "agreement_mean", "agreement_std"),
)
"""Headings of :meth:`MeasureTable.numbers`."""


@final
@dataclass(frozen=True)
class MeasureSummary:
    """A saturation measure over the runs of a row.

    Args:
        name: name of the measure.
        trends: its trend in each run, at least one.
    """

    name: str
    trends: tuple[Trend, ...]

    @property
    def rise(self) -> Spread | None:
        """Mean and deviation of the rise; ``None`` if a run has none."""
        return spread(trend.rise for trend in self.trends)

    @property
    def agreement(self) -> Spread | None:
        """Mean and deviation of the agreement; ``None`` if a run has none."""
        return spread(trend.agreement for trend in self.trends)

    @property
    def falls(self) -> tuple[int, int]:
        """The number of expansions at which the measure falls, and of all expansions."""
        falls = [fall for trend in self.trends for fall in trend.falls]
        return sum(fall > 0 for fall in falls), len(falls)

    @property
    def resets(self) -> int:
        """The number of runs in which the measure falls at every expansion."""
        return sum(trend.resets is True for trend in self.trends)


@final
@dataclass(frozen=True)
class MeasureTable:
    """The measures of one row in one protocol.

    Args:
        protocol: name of the protocol.
        row: name of the row.
        label: name of the row in tables.
        measures: a line for each.
    """

    protocol: str
    row: str
    label: str
    measures: tuple[MeasureSummary, ...]

    @property
    def name(self) -> str:
        """Heading of the table."""
        return f"{self.protocol}: measures of {self.label}"

    def shown(self) -> Sheet:
        """Return the table as it is shown."""
        headings = ("Measure", "Runs", "Rise", "Falls at expansions", "Runs that reset")
        rows = []
        for one in self.measures:
            (falls, expansions), runs = one.falls, len(one.trends)
            texts = (
                one.name.replace("_", " "),
                str(runs),
                format_spread(one.rise, 2),
                f"{falls} of {expansions}" if expansions else "–",
                f"{one.resets} of {runs}" if expansions else "–",
                format_spread(one.agreement, 2),
            )
            rows.append(tuple(map(Entry, texts)))
        return Sheet((*headings, "Agreement"), tuple(rows), (_NOTE,))

    def numbers(self) -> list[list[object]]:
        """Return a line for each measure, as :data:`MEASURE_HEADINGS` names its numbers."""
        return [
            [
                *(self.protocol, self.row, one.name, len(one.trends)),
                *(*_parts(one.rise), *one.falls, one.resets, *_parts(one.agreement)),
            ]
            for one in self.measures
        ]


_NOTE = (
    "Rise: Spearman's correlation of a measure with the position within a backbone's tasks, mean "
    "over its backbones; 1 if it rises with every task. A run resets if the measure falls at every "
    "expansion. Agreement: deviation between backbones at equal positions, relative to the mean; "
    "less is better. ±: standard deviation over runs."
)


def measure_tables(results: Results) -> Sequence[MeasureTable]:
    """Return a table for each row and protocol with measures, if the study draws them.

    Args:
        results: the study's numbers.
    """
    if "measures" not in results.made.study.figures:
        return ()
    found = [
        MeasureTable(protocol, row, results.label(row), _measures(results, row, protocol))
        for protocol in results.protocols
        for row in results.rows_in(protocol)
    ]
    return [table for table in found if table.measures]


def _measures(results: Results, row: str, protocol: str) -> tuple[MeasureSummary, ...]:
    runs = [results.found(row, protocol, seed) for seed in results.seeds]
    known = [trends_of(found.record) for found in runs if found]
    names = dict.fromkeys(name for trends in known for name in trends)
    return tuple(
        MeasureSummary(name, tuple(trends[name] for trends in known if name in trends))
        for name in names
    )


def _parts(cell: Spread | None) -> tuple[object, object]:
    """Return mean and deviation; an empty text for what is unknown."""
    if cell is None:
        return "", ""
    return cell.mean, "" if cell.deviation is None else cell.deviation
