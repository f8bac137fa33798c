"""A study as data: which runs it needs, what its table shows, and which claims it checks.

``settings/studies/*.yaml`` hold those of the paper; a user's own file has the same form
(docs/studies.md). Imports no torch.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator

from grace.base.errors import GraceError
from grace.base.words import did_you_mean
from grace.settings.load import ConfigError, packaged, read_file
from grace.settings.problems import problems_of
from grace.settings.recipe import Settings

MAX_ROWS = 1000
"""The largest number of rows, those of grids included."""
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


# A name is shown in tables and typed on the command line.
Name = Annotated[str, Field(pattern=r"^[^\s,=@/\\]+$", max_length=60)]
Seed = Annotated[int, Field(strict=True, ge=0)]


def _without_seed(texts: Iterable[str]) -> None:
    """Refuse a seed among settings: that of the cell is set after them."""
    for text in texts:
        if text.partition("=")[0].strip() == "seed":
            raise GraceError(f"'{text}' has no effect: a scale's 'seeds' are those of its runs")


def _overrides(texts: Words) -> Words:
    _without_seed(texts)
    return texts


Overrides = Annotated[Words, AfterValidator(_overrides)]


class ProtocolSettings(Settings):
    """One protocol of a study: a stream that all rows learn."""

    experiment: str = Field(description="a packaged experiment, or the path of a YAML file")
    set: Overrides = Field((), description="key.path=value texts for all runs of the protocol")
    paper: str = Field(
        "",
        description="protocol of the paper whose numbers are shown beside ours, with its table "
        "where that is not the study's: table-2/b0i5; empty: the protocol's own name",
    )


class ScaleSettings(Settings):
    """One size of a study: its protocols and seeds."""

    protocols: dict[Name, ProtocolSettings]
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

    @field_validator("protocols", mode="before")
    @classmethod
    def _experiment_alone(cls, value: Any) -> Any:  # noqa: ANN401 - whatever was read
        """Read ``b0i10: cifar100-b0i10`` as a protocol with this experiment."""
        if not isinstance(value, dict):
            return value
        return {
            name: {"experiment": given} if isinstance(given, str) else given
            for name, given in value.items()
        }

    @model_validator(mode="after")
    def _has_runs(self) -> Self:
        if not self.protocols or not self.seeds:
            raise GraceError("a scale needs a protocol and a seed")
        if len(set(self.seeds)) < len(self.seeds):
            raise GraceError("a seed is given twice")
        return self


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
    expand_at: str | None = Field(
        None,
        pattern=r"^from \S+$",
        description="'from ROW': expand where that row's run of the same seed did, which is made "
        "first",
    )
    probe: Words | None = Field(
        None, description="saturation measures taken after every task (method grace)"
    )
    grid: dict[str, tuple[Number, ...]] | None = Field(
        None,
        description="a row for each combination of these values, named after them. Pairs of "
        "threshold and threshold_decay that decide alike are trained once",
    )

    @property
    def probe_overrides(self) -> Words:
        """``probe`` as settings of a run."""
        return (f"probe.measures=[{', '.join(self.probe)}]",) if self.probe else ()

    @property
    def num_rows(self) -> int:
        """The number of rows that it stands for."""
        return prod(map(len, self.grid.values())) if self.grid is not None else 1

    @model_validator(mode="after")
    def _grid_has_values(self) -> Self:
        if self.grid is not None and (not self.grid or not all(self.grid.values())):
            raise GraceError("a grid needs a setting and its values")
        _without_seed(self.grid or ())
        return self


class StudySettings(Settings):
    """A study: rows × protocols × seeds, a table over them, claims and figures."""

    name: str = Field("study", pattern=r"^[\w.-]*[\w-][\w.-]*$", max_length=60)
    title: str = Field("", max_length=200)
    paper: str = Field("", description="table of the paper: table-4; empty: none")
    beyond_paper: bool = Field(False, description="true: the paper has no such experiment")
    scales: dict[Name, ScaleSettings]
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
    def _names_exist(self) -> Self:
        protocols = {name for scale in self.scales.values() for name in scale.protocols}
        count = sum(row.num_rows for row in self.rows.values())
        if not 0 < count <= MAX_ROWS:
            raise GraceError(f"the study has {count} rows; it should have 1 to {MAX_ROWS}")
        for scale, own in self.scales.items():
            runs = count * len(own.protocols) * len(own.seeds)
            if runs > MAX_RUNS:
                raise GraceError(
                    f"scale {scale} has {runs} runs ({count} rows × {len(own.protocols)} protocols "
                    f"× {len(own.seeds)} seeds); at most {MAX_RUNS} can be planned"
                )
        if self.name in _TAKEN:
            raise GraceError(f"'{self.name}' is a folder that all studies share", "rename the file")
        points = {p for name, row in self.rows.items() if row.grid for p in self.grid_rows(name)}
        rows = points | {name for name, row in self.rows.items() if not row.grid}
        varied = {key for row in self.rows.values() for key in row.grid or ()}
        known = {
            "scale": set(self.scales),
            "protocol": protocols,
            "row": rows,
            "grid with": varied,
            "point of a grid": points,
        }
        for kind, name, where in self._named():
            if name not in known[kind]:
                hint = did_you_mean(name, sorted(known[kind]))
                raise GraceError(f"{where}: no {kind} '{name}'{hint}")
        if any(row.memory for row in self.rows.values()) and not self.reference:
            raise GraceError("memory: aligned needs a reference", "name its row as 'reference'")
        return self

    def _named(self) -> Iterator[tuple[str, str, str]]:
        """Yield the kind, name and place of everything that the study refers to."""
        for where, name in (("reference", self.reference), ("delta", self.delta)):
            if name:
                yield "row", name, where
        for name, row in self.rows.items():
            where = f"rows.{name}"
            yield from (("protocol", given, where) for given in row.protocols or ())
            yield from (("scale", given, where) for given in row.scales or ())
            if row.expand_at:
                yield "row", row.expand_at.removeprefix("from "), where
                held = self.rows.get(row.expand_at.removeprefix("from "))
                if held is not None and held.expand_at:
                    raise GraceError(
                        f"{where}: expand_at names a row that has expand_at too",
                        "name a row that decides itself",
                    )
        for claim in self.claims:
            where = f"claim {claim.id}"
            yield from (("protocol", given, where) for given in claim.protocols or ())
            yield from (("scale", given, where) for given in claim.scales or ())
            if claim.kind == "never-rises":
                yield "grid with", claim.setting, where
            if claim.kind == "fewer-points" and not any(row.grid for row in self.rows.values()):
                raise GraceError(f"{where}: no row has a grid")
            if claim.kind == "on-front":
                yield "point of a grid", str(claim.left), where
            if claim.kind != "difference":
                continue  # Its left side names a point or a measure, or nothing.
            for left, right in claim.sides:
                for term in [*left, *(right if isinstance(right, dict) else ())]:
                    row, _, protocol = term.partition("@")
                    yield "row", row, where
                    if protocol:
                        yield "protocol", protocol, where

    @cached_property
    def points(self) -> Mapping[str, tuple[str, Words]]:
        """The row of the file, and the settings, of every row of the table, by its name."""
        every = {n: (row, set_) for row in self.rows for n, set_ in self.grid_rows(row).items()}
        return every | {name: (name, row.set) for name, row in self.rows.items() if not row.grid}

    @property
    def heading(self) -> str:
        """The title, marked if the paper has no such experiment."""
        title = self.title or self.name
        return f"{title} (beyond the paper)" if self.beyond_paper else title

    def grid_rows(self, row: str) -> dict[str, tuple[str, ...]]:
        """Return the settings of each point of a row's grid, by name; or of the row itself."""
        own = self.rows[row]
        if own.grid is None:
            return {row: own.set}
        return {
            "/".join(map(_shortest, values)): (
                *own.set,
                *(f"{key}={value!r}" for key, value in zip(own.grid, values, strict=True)),
            )
            for values in product(*own.grid.values())
        }


def _shortest(value: float) -> str:
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


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
    raw.setdefault("name", Path(name_or_path).stem)
    try:
        return StudySettings.model_validate(raw)
    except ValidationError as error:
        problems = problems_of(error, StudySettings, whole="study").values()
        raise ConfigError([f"{name_or_path}: {line}" for line in problems]) from error
