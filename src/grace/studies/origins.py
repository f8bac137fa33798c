"""Where the numbers of a row or a point come from: runs trained for it, or replayed ones.

A run is *replayed* if it was not trained: a finished run that took the same decisions at every task
stands for it. Tables, figures and the page of a study all mark it by the rule of this module.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, final

from grace.studies.pareto import Point
from grace.studies.study_results import Results

OriginName = Literal["trained", "partly replayed", "replayed"]
ORIGINS: Mapping[OriginName, Literal["full", "half", "none"]] = {
    "trained": "full",
    "partly replayed": "half",
    "replayed": "none",
}
"""How much of a mark is filled in figures: all, a half, or none of it."""
REPLAYED = (
    "replayed: not trained, because a finished run that took the same decisions at every task "
    "stands for it (1 of 3 replayed: in one of three runs)"
)


@final
@dataclass(frozen=True)
class Origin:
    """How many runs of a row or a point are replayed.

    Args:
        replayed: number of replayed runs.
        runs: number of all its finished runs.
    """

    replayed: int
    runs: int

    @property
    def name(self) -> OriginName:
        """Return "replayed" if all runs are, "partly replayed" if some are, else "trained"."""
        if not self.replayed:
            return "trained"
        return "replayed" if self.replayed == self.runs else "partly replayed"

    def marked(self, text: str) -> str:
        """Return a text with its mark: "a", "a (2 of 3 replayed)" or "a (replayed)".

        Args:
            text: name of the row or the point.
        """
        some = f"{self.replayed} of {self.runs} " if self.name == "partly replayed" else ""
        return f"{text} ({some}replayed)" if self.replayed else text


def origin(results: Results, rows: Sequence[str], protocol: str) -> Origin:
    """Count the replayed runs of some rows, over all seeds.

    Args:
        results: the study's numbers.
        rows: names of the rows; those of a point are all pairs that lie there.
        protocol: name of the protocol.
    """
    found = [results.found(row, protocol, seed) for row in rows for seed in results.seeds]
    known = [one for one in found if one is not None]
    return Origin(sum(one.is_replayed for one in known), len(known))


def by_origin(
    results: Results, points: Sequence[Point], protocol: str
) -> Mapping[OriginName, list[Point]]:
    """Return the points by the origin of their runs, in the order given; each origin has a list.

    Args:
        results: the study's numbers.
        points: points with the names of their rows.
        protocol: name of the protocol.
    """
    names = [origin(results, point.labels, protocol).name for point in points]
    return {
        name: [point for point, own in zip(points, names, strict=True) if own == name]
        for name in ORIGINS
    }
