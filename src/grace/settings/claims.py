"""Settings of a study's claims: which sums of numbers are compared. Imports no torch."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import Field

from grace.settings.settings_model import Settings

MetricName = Literal[
    "last",
    "average",
    "forgetting",
    "old",
    "new",
    "task_aware_last",
    "backbones",
    "parameters",
    "exemplars",
    "megabytes",
    "seconds",
]
"""The numbers that a study can show and compare."""
Words = tuple[str, ...]
Number = Annotated[float, Field(ge=-1e9, le=1e9)]
Terms = dict[str, Number]
"""Factors of rows, whose sum is meant."""
Place = Literal["best", "second"]
Side = Terms | Place
_PLACES: Mapping[str, Place] = {"best": "best", "second": "second"}


class ClaimSettings(Settings):
    """A statement that our runs can show: left − right + slack is not negative, seed by seed."""

    id: str = Field(max_length=40)
    says: str = Field("", max_length=400, description="the statement in words")
    kind: Literal[
        "difference",
        "never-rises",
        "fewer-points",
        "on-front",
        "rises-most",
        "resets",
        "agrees-best",
    ] = "difference"
    left: str | Terms = Field(
        "",
        description="a row, or factors of rows: {grace: 1, der: -0.5}. ROW@PROTOCOL is the "
        "row's number in that protocol",
    )
    right: str | Terms = Field(
        "",
        description="likewise; 'best' or 'second': the highest or second highest of the other "
        "ranked rows, for each seed",
    )
    pairs: tuple[tuple[str, str], ...] = Field((), description="several rows left and right")
    order: Words = Field((), description="rows of which each is at least the one before")
    metric: MetricName = "last"
    metrics: dict[MetricName, Number] | None = Field(
        None, description="several metrics with the slack of each, in place of metric and slack"
    )
    slack: Number = Field(0.0, description="added to left − right. Higher: right may be better")
    setting: str = Field("", description="never-rises: the setting of the grid")
    over: Literal["every", "some"] = Field(
        "every", description="some: the claim is about the best of its lines"
    )
    protocols: Words | None = None
    scales: Words | None = None

    @property
    def slacks(self) -> Mapping[MetricName, float]:
        """The metrics, each with its slack."""
        return self.metrics if self.metrics is not None else {self.metric: self.slack}

    @property
    def sides(self) -> Iterator[tuple[Terms, Side]]:
        """The pairs of sums that are compared."""
        if self.left:
            place = _PLACES.get(self.right) if isinstance(self.right, str) else None
            yield _terms(self.left), place or _terms(self.right)
        yield from ((_terms(left), _terms(right)) for left, right in self.pairs)
        yield from zip(map(_terms, self.order[1:]), map(_terms, self.order[:-1]), strict=True)


def _terms(side: str | Terms) -> Terms:
    if isinstance(side, str):
        return {side: 1.0} if side else {}
    return side
