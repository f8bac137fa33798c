"""The table of a grid's front: where each pair of settings stands, in the means and by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from grace.studies.grid_claims import by_seed
from grace.studies.pareto import FrontPlace, front_places
from grace.studies.sheet import Entry, Sheet
from grace.studies.study_results import Results

FRONT_HEADINGS = ("protocol", "row", "on_front", "seeds_on_own_front", "seeds", "dominated_by")
"""Headings of :meth:`FrontTable.numbers`."""


@final
@dataclass(frozen=True)
class FrontTable:
    """The pairs of a grid in one protocol.

    Args:
        protocol: name of the protocol.
        places: where each pair stands, by the name of its row.
    """

    protocol: str
    places: Mapping[str, FrontPlace]

    @property
    def name(self) -> str:
        """Heading of the table."""
        return f"{self.protocol}: front of backbones and Avg"

    def shown(self) -> Sheet:
        """Return the table as it is shown."""
        headings = ("Row", "Front of the means", "Fronts of seeds", "Dominated beyond noise by")
        rows = [
            (
                Entry(row),
                Entry("yes" if place.is_on_front else "no"),
                Entry(f"{place.times} of {place.seeds}"),
                Entry(str(place.dominated_by)),
            )
            for row, place in self.places.items()
        ]
        return Sheet(headings, tuple(rows), (_NOTE,))

    def numbers(self) -> list[list[object]]:
        """Return a line for each pair, as :data:`FRONT_HEADINGS` names its numbers."""
        return [
            [self.protocol, row, int(at.is_on_front), at.times, at.seeds, at.dominated_by]
            for row, at in self.places.items()
        ]


_NOTE = (
    "A pair is on a front if no other pair is better in backbones (fewer) or Avg without being "
    "worse in the other. Fronts of seeds: in how many seeds, each taken alone, it is on the front. "
    "Dominated beyond noise: the number of pairs that have no more backbones, and an Avg that is "
    "higher by more than two standard errors."
)


def front_tables(results: Results) -> Sequence[FrontTable]:
    """Return a table for each protocol with a grid, if the study draws the front.

    Args:
        results: the study's numbers. Pairs are compared over the seeds that all of them have.
    """
    if "front" not in results.made.study.figures:
        return ()
    found = [
        FrontTable(protocol, front_places(by_seed(results, protocol, "average")))
        for protocol in results.protocols
    ]
    return [table for table in found if table.places]
