"""A study as data: which runs it needs, what its table shows, and which claims it checks.

``settings/studies/*.yaml`` hold those of the paper; a user's own file has the same form
(docs/studies.md). Imports no torch.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from grace.base.errors import GraceError
from grace.base.words import did_you_mean
from grace.settings.load import ConfigError, packaged, read_file
from grace.settings.problems import problems_of
from grace.settings.recipe import Settings

MAX_RUNS = 2000
"""The largest number of runs at one scale: rows × protocols × seeds."""
_TAKEN = frozenset({"runs", "cells", "logs", "first-tasks", "lock"})

MetricName = Literal[
    "last",
    "average",
    "forgetting",
    "old",
    "new",
    "backward_transfer",
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


def _as_terms(side: object) -> object:
    return {side: 1.0} if isinstance(side, str) and side else side or {}


Terms = Annotated[dict[str, Number], BeforeValidator(_as_terms)]
"""Factors of rows, whose sum is meant: {grace: 1, der: -0.5}; a row alone has the factor 1.
ROW@PROTOCOL is the row's number in that protocol."""
Place = Literal["best", "second"]


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
    left: Terms = Field({}, description="a row, or factors of rows: {grace: 1, der: -0.5}")
    right: Place | Terms = Field(
        {},
        description="likewise; 'best' or 'second': the highest or second highest of the other "
        "ranked rows, for each seed",
    )
    pairs: tuple[tuple[Terms, Terms], ...] = Field((), description="several left and right")
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
    def sides(self) -> Iterator[tuple[Terms, Place | Terms]]:
        """The pairs of sums that are compared."""
        if self.left:
            yield self.left, self.right
        yield from self.pairs

    @property
    def subject(self) -> str:
        """What a claim of another kind is about: a point of a grid, or a measure."""
        return next(iter(self.left), "")


def terms_of(left: Terms, right: Place | Terms) -> list[tuple[str, str]]:
    """Return row and protocol of every term; no protocol: the term is about any."""
    every = [*left, *(right if isinstance(right, dict) else ())]
    return [(row, protocol) for row, _, protocol in (term.partition("@") for term in every)]


# A name is shown in tables and typed on the command line.
Name = Annotated[str, Field(pattern=r"^[^\s,=@/\\]+$", max_length=60)]
Seed = Annotated[int, Field(strict=True, ge=0)]


def _without_seed(text: str) -> str:
    """Refuse a seed as a setting: that of the cell is set after it."""
    if text.partition("=")[0].strip() == "seed":
        raise GraceError(f"'{text}' has no effect: a scale's 'seeds' are those of its runs")
    return text


Override = Annotated[str, AfterValidator(_without_seed)]
Overrides = tuple[Override, ...]


class ProtocolSettings(Settings):
    """One protocol of a study: a stream that all rows learn."""

    experiment: str = Field(description="a packaged experiment, or the path of a YAML file")
    set: Overrides = Field((), description="key.path=value texts for all runs of the protocol")
    paper: str = Field(
        "",
        description="protocol of the paper whose numbers are shown beside ours, with its table "
        "where that is not the study's: table-2/b0i5; empty: the protocol's own name",
    )


def _as_protocol(given: object) -> object:
    return {"experiment": given} if isinstance(given, str) else given


class ScaleSettings(Settings):
    """One size of a study: its protocols and seeds."""

    protocols: dict[Name, Annotated[ProtocolSettings, BeforeValidator(_as_protocol)]] = Field(
        description="a name alone is that of its experiment"
    )
    seeds: tuple[Seed, ...] = Field(
        (1,), description="one run per row, protocol and seed; a seed sets all four of a run"
    )
    set: Overrides = Field(
        (), description="key.path=value texts for all runs, such as seeds.class_order=1993"
    )
    same_data: bool = Field(
        False,
        description="true: the paper's data and settings, so that its numbers are targets; "
        "false: its numbers are shown beside ours, but only their order can be compared",
    )
    images_per_backbone: int | None = Field(
        None,
        ge=1,
        description="memory: aligned buys this many images with one backbone, in place of its "
        "bytes. Higher: more exemplars; none: as many as its bytes hold",
    )


class RowSettings(Settings):
    """One row of a study: a method and its settings."""

    method: str
    set: Overrides = Field((), description="key.path=value texts over the experiment's preset")
    label: str = Field("", max_length=80, description="name in tables; empty: the row's name")
    paper: str = Field(
        "",
        description="row of the paper's table, with another table before it where that is meant: "
        "table-1/der; none: it has no numbers; empty: the row's name",
    )
    ranked: bool = Field(
        True, description="false: neither marked best or second nor compared by 'best'"
    )
    protocols: Words | None = Field(None, description="only in these; none: in all")
    scales: Words | None = Field(None, description="only at these; none: at all")
    memory: Literal["aligned"] | None = Field(
        None,
        description="aligned: as many exemplars as make this row cost what the study's reference "
        "costs; the plain run, and the reference's, are made first",
    )
    expands_like: str = Field(
        "",
        description="expand where this row's run of the same seed did, which is made first; "
        "empty: it decides itself",
    )
    probe: Words | None = Field(
        None, description="saturation measures taken after every task (method grace)"
    )
    grid: dict[Override, Annotated[tuple[Number, ...], Field(min_length=1)]] | None = Field(
        None,
        min_length=1,
        description="a row for each combination of these values, named after them. Pairs of "
        "threshold and threshold_decay that decide alike are trained once",
    )

    @property
    def points(self) -> Iterator[tuple[str, Words]]:
        """Name and settings of each point of the grid."""
        grid = self.grid or {}
        for values in product(*grid.values()):
            own = (f"{key}={value!r}" for key, value in zip(grid, values, strict=True))
            yield "/".join(map(_shortest, values)), (*self.set, *own)

    @property
    def num_rows(self) -> int:
        """The number of rows that it stands for."""
        return prod(map(len, self.grid.values())) if self.grid is not None else 1


def _shortest(value: float) -> str:
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


class StudySettings(Settings):
    """A study: rows × protocols × seeds, a table over them, claims and figures."""

    name: str = Field("study", pattern=r"^[\w.-]*[\w-][\w.-]*$", max_length=60)
    title: str = Field("", max_length=200)
    paper: str = Field("", description="table of the paper: table-4; empty: none")
    beyond_paper: bool = Field(False, description="true: the paper has no such experiment")
    scales: dict[Name, ScaleSettings] = Field(min_length=1)
    rows: dict[Name, RowSettings]
    reference: str = Field("", description="row whose bytes memory: aligned gives to the others")
    delta: str = Field("", description="row whose lead over the best other one ends the table")
    delta_against: str = Field("", description="row that delta compares parameters with")
    columns: tuple[MetricName, ...] = ("last", "average", "backbones")
    claims: tuple[ClaimSettings, ...] = ()
    figures: tuple[
        Literal["accuracy", "backbones", "protocols", "front", "measures", "bars"], ...
    ] = ("accuracy", "backbones")

    @model_validator(mode="after")
    def _can_be_planned(self) -> Self:
        for name, scale in self.scales.items():
            self.refuse_too_many(self.rows, scale.protocols, scale.seeds, f"scale {name}")
        if self.name in _TAKEN:
            raise GraceError(f"'{self.name}' is a folder that all studies share", "rename the file")
        known = {
            "scale": set(self.scales),
            "protocol": {"", *(name for own in self.scales.values() for name in own.protocols)},
            "row": {"", *self.points},
            "row that decides itself": {
                name for name, (row, _) in self.points.items() if not self.rows[row].expands_like
            },
            "point of a grid": set(self.points) - set(self.rows),
            "grid with": {key for row in self.rows.values() for key in row.grid or ()},
        }
        for kind, name, where in self._named():
            if name not in known[kind]:
                hint = did_you_mean(name, sorted(known[kind]))
                raise GraceError(f"{where}: no {kind} '{name}'{hint}")
        if any(row.memory for row in self.rows.values()) and not self.reference:
            raise GraceError("memory: aligned needs a reference", "name its row as 'reference'")
        return self

    def refuse_too_many(
        self, rows: Collection[str], protocols: Collection[str], seeds: Collection[int], what: str
    ) -> None:
        """Refuse more runs than can be planned; grids are not multiplied out for that."""
        count = sum(self.rows[row].num_rows for row in rows)
        runs = count * len(protocols) * len(seeds)
        if not 0 < runs <= MAX_RUNS:
            raise GraceError(
                f"{what} has {runs} runs ({count} rows × {len(protocols)} protocols × {len(seeds)} "
                f"seeds); 1 to {MAX_RUNS} can be planned"
            )

    def _named(self) -> Iterator[tuple[str, str, str]]:
        """Yield the kind, name and place of everything that the study refers to."""
        for where in ("reference", "delta", "delta_against"):
            yield "row", getattr(self, where), where
        parts: list[tuple[str, RowSettings | ClaimSettings]] = [
            *((f"rows.{name}", row) for name, row in self.rows.items()),
            *((f"claim {claim.id}", claim) for claim in self.claims),
        ]
        for where, part in parts:
            yield from (("protocol", given, where) for given in part.protocols or ())
            yield from (("scale", given, where) for given in part.scales or ())
            if isinstance(part, RowSettings) and part.expands_like:
                yield "row that decides itself", part.expands_like, where
        for claim in self.claims:
            where = f"claim {claim.id}"
            if claim.kind == "fewer-points" and not any(row.grid for row in self.rows.values()):
                raise GraceError(f"{where}: no row has a grid")
            if claim.kind == "never-rises":
                yield "grid with", claim.setting, where
            elif claim.kind == "on-front":
                yield "point of a grid", claim.subject, where
            elif claim.kind == "difference":
                for row, protocol in (term for side in claim.sides for term in terms_of(*side)):
                    yield "row", row, where
                    yield "protocol", protocol, where

    def grid_rows(self, row: str) -> Mapping[str, Words]:
        """Return the settings of each point of a row's grid, by name; or of the row itself."""
        own = self.rows[row]
        return {row: own.set} if own.grid is None else dict(own.points)

    @cached_property
    def points(self) -> Mapping[str, tuple[str, Words]]:
        """The row of the file, and the settings, of every row of the table, by its name."""
        return {n: (row, own) for row in self.rows for n, own in self.grid_rows(row).items()}


def list_studies() -> dict[str, str]:
    """Map the name of every packaged study to its title."""
    return {name: load_study(name).title for name in packaged("study")}


def load_study(name_or_path: str) -> StudySettings:
    """Read a study.

    Args:
        name_or_path: a packaged study, or the path of a YAML file.

    Raises:
        ConfigError: if there is no such study, or it is wrong; it lists all problems.
    """
    raw, _ = read_file("study", name_or_path)
    return study_from({"name": Path(name_or_path).stem, **raw}, name_or_path)


def study_from(raw: Mapping[str, object], what: str) -> StudySettings:
    """Return a study of plain values; all problems are told, each with ``what`` before it."""
    try:
        return StudySettings.model_validate(raw)
    except ValidationError as error:
        problems = problems_of(error, StudySettings, whole="study").values()
        raise ConfigError([f"{what}: {line}" for line in problems]) from error
