"""The table of a grid's front: where each pair of settings stands, in the means and by seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from grace.studies.grid_claims import by_seed, grid_rows
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
        places: where each pair stands, by the name of its row; ``None``: it has no run.
        notes: what a reader must know of the pairs and seeds that are missing.
    """

    protocol: str
    places: Mapping[str, FrontPlace | None]
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Heading of the table."""
        return f"{self.protocol}: front of backbones and Avg"

    def shown(self) -> Sheet:
        """Return the table as it is shown."""
        headings = ("Row", "Front of the means", "Fronts of seeds", "Dominated beyond noise by")
        rows = [
            (Entry(row), *map(Entry, _texts(place) if place else ("–", "–", "–")))
            for row, place in self.places.items()
        ]
        return Sheet(headings, tuple(rows), (_NOTE, *self.notes))

    def numbers(self) -> list[list[object]]:
        """Return a line for each pair that has a run, as :data:`FRONT_HEADINGS` names them."""
        return [
            [self.protocol, row, int(at.is_on_front), at.times, at.seeds, at.dominated_by]
            for row, at in self.places.items()
            if at is not None
        ]


def _texts(place: FrontPlace) -> tuple[str, str, str]:
    dominated = "–" if place.dominated_by is None else str(place.dominated_by)
    return "yes" if place.is_on_front else "no", f"{place.times} of {place.seeds}", dominated


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
    found = [_front_table(results, protocol) for protocol in results.protocols]
    return [table for table in found if any(table.places.values())]


def _front_table(results: Results, protocol: str) -> FrontTable:
    places = front_places(by_seed(results, protocol, "average"))
    notes = []
    seeds = next((place.seeds for place in places.values()), 0)
    if seeds < len(results.seeds):
        notes.append(
            f"compared over the seeds that all pairs with a run have: {seeds} of "
            f"{len(results.seeds)}"
        )
    if results.lacks_points(protocol):
        notes.append("not all pairs were chosen: others may be better than those on the front")
    rows = grid_rows(results, protocol)
    return FrontTable(protocol, {row: places.get(row) for row in rows}, tuple(notes))
