"""The numbers that the paper prints, its claims, and its contradictions. Imports no torch."""

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, Literal, final

from pydantic import BaseModel, ConfigDict

from grace.base import strict_json
from grace.base.errors import GraceError
from grace.base.strict_json import checked
from grace.base.words import did_you_mean

Metric = Literal["parameters", "last", "average", "exemplars"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


@final
class PaperColumn(_Frozen):
    """One printed column: a metric in a protocol."""

    dataset: str
    protocol: str
    experiment: str
    num_tasks: int
    metric: Metric
    unit: str


@final
class PaperRow(_Frozen):
    """One printed row."""

    row: str
    method: str | None
    """``None`` for rows of differences."""


@final
class PaperCell(_Frozen):
    """One printed number."""

    row: str
    method: str | None
    dataset: str
    protocol: str
    metric: Metric
    unit: str
    value: float | None
    """``None`` for a dash."""
    mark: Literal["best", "second"] | None = None
    """Typeset in bold (best) or underlined (second)."""


@final
class PaperTable(_Frozen):
    """One table of the paper."""

    id: str
    number: int
    caption: str
    setting: str
    columns: tuple[PaperColumn, ...]
    rows: tuple[PaperRow, ...]
    cells: tuple[PaperCell, ...]

    @cached_property
    def _by_place(self) -> Mapping[tuple[str, str, str, str], PaperCell]:
        return {(cell.row, cell.protocol, cell.metric, cell.dataset): cell for cell in self.cells}

    def cell(self, row: str, protocol: str, metric: str, dataset: str = "") -> PaperCell | None:
        """Return a printed cell; ``None``: the table has no such cell.

        Args:
            row: "der", "grace:average", "-FL", …
            protocol: "b0i5", "b0i10", "b50i2" or "b50i10".
            metric: "parameters" (millions), "last", "average" (percent) or "exemplars".
            dataset: "cifar100" or "imagenet100"; empty: that of the table's first column. Only
                table 3 has both.
        """
        return self._by_place.get((row, protocol, metric, dataset or self.columns[0].dataset))


@final
class PaperCheck(_Frozen):
    """The claim, computed again from the paper's own tables."""

    holds: Literal["partly"] | bool | None = None
    """``None``: it cannot be computed, as the figures have no numbers."""
    note: str = ""
    recomputed: Any = None


@final
class PaperStatement(_Frozen):
    """A number or claim of the paper's text."""

    id: str
    kind: Literal["claim", "fact", "setting"]
    statement: str
    value: float | tuple[float, ...] | None
    unit: str | None
    where: str
    check: PaperCheck = PaperCheck()


@final
class Contradiction(_Frozen):
    """Something that the paper says in two ways."""

    id: str
    where: str
    what: str


@final
class PaperNumbers(_Frozen):
    """All printed numbers of the paper."""

    paper: str
    tables: tuple[PaperTable, ...]
    text: tuple[PaperStatement, ...]
    contradictions: tuple[Contradiction, ...]

    def table(self, name: str) -> PaperTable:
        """Return a table by its name, "table-1" to "table-6".

        Raises:
            GraceError: if the paper has no such table.
        """
        found = {table.id: table for table in self.tables}
        if name not in found:
            meant = did_you_mean(name, found) or f" (known: {', '.join(found)})"
            raise GraceError(f"the paper has no table '{name}'{meant}")
        return found[name]

    def value(
        self, table: str, row: str, protocol: str, metric: str, dataset: str = ""
    ) -> float | None:
        """Return a printed number; ``None``: a dash, or the paper does not have it.

        Args:
            table: "table-1" to "table-6".
            row: "der", "grace:average", "-FL", …
            protocol: "b0i5", "b0i10", "b50i2" or "b50i10".
            metric: "parameters" (millions), "last", "average" (percent) or "exemplars".
            dataset: "cifar100" or "imagenet100"; empty: that of the table's first column.

        Raises:
            GraceError: if the paper has no such table.
        """
        cell = self.table(table).cell(row, protocol, metric, dataset)
        return cell.value if cell else None

    @property
    def claims(self) -> tuple[PaperStatement, ...]:
        """The claims of the text."""
        return tuple(statement for statement in self.text if statement.kind == "claim")


def place_in_paper(table: str, given: str, protocol: str) -> tuple[str, str, str]:
    """Return the paper's table, protocol and data set; no table: the first one is empty.

    Args:
        table: of a study: "table-1", or nothing.
        given: of a protocol: "b0i5", "b0i5/imagenet100", "table-3/b0i5/imagenet100", or nothing.
        protocol: its name, which counts where nothing is given.

    Raises:
        GraceError: if the paper has no such table, protocol or data set.
    """
    if given.startswith("table-"):
        table, _, given = given.partition("/")
    name, _, dataset = given.partition("/")
    if table:
        columns = paper_numbers().table(table).columns
        if name:
            _refuse_unknown(table, "protocol", name, [column.protocol for column in columns])
        if dataset and dataset not in {column.dataset for column in columns}:
            raise GraceError(f"{table} of the paper has no data set '{dataset}'")
    return table, name or protocol, dataset


@cache
def paper_numbers() -> PaperNumbers:
    """Read the packaged numbers."""
    name = "paper-numbers.json"
    data = files("grace.studies").joinpath(name).read_bytes()
    return checked(PaperNumbers, strict_json.parse(data, name), name)


def row_in_paper(table: str, given: str, row: str) -> tuple[str, str]:
    """Return the paper's table and row whose numbers stand beside a row of a study.

    Args:
        table: of the protocol: "table-6".
        given: of the row: "grace:average", "table-1/der", "none" (it has no numbers), or nothing.
        row: its name, which counts where nothing is given.

    Raises:
        GraceError: if the paper has no such table, or the table no such row.
    """
    other, _, name = given.rpartition("/")
    table = other or table
    if name not in ("", "none"):
        _refuse_unknown(table, "row", name, [own.row for own in paper_numbers().table(table).rows])
    return table, name or row


def _refuse_unknown(table: str, kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        each = list(dict.fromkeys(known))
        meant = did_you_mean(name, each) or f" (known: {', '.join(each)})"
        raise GraceError(f"{table} of the paper has no {kind} '{name}'{meant}")
