"""The numbers that the paper prints, which stand beside ours. Imports no torch."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from grace.base.errors import GraceError
from grace.base.words import did_you_mean_one_of

_UNITS = {"cifar100": 0.46, "imagenet100": 11.17}
"""Millions of parameters of a backbone, by which the paper counts and from which it truncates."""


@cache
def paper_tables() -> Mapping[str, Mapping[str, Any]]:
    """Return the tables of ``paper-numbers.json`` by name, "table-1" to "table-6".

    Accuracies are in percent, parameters in millions; a dash is ``None``.
    """
    data = files("grace.studies").joinpath("paper-numbers.json").read_bytes()
    return {table["id"]: table for table in json.loads(data)["tables"]}


@cache
def _cells(table: str) -> Mapping[tuple[str, str, str, str], float | None]:
    keys = ("row", "protocol", "metric", "dataset")
    return {tuple(c[key] for key in keys): c["value"] for c in _table(table)["cells"]}


def paper_value(table: str, row: str, protocol: str, metric: str, dataset: str) -> float | None:
    """Return a printed number; ``None``: a dash, or the paper does not have it.

    Backbones are parameters by those of one backbone, where that is a whole number.

    Args:
        table: "table-1" to "table-6".
        row: "der", "grace:average", "-FL", …
        protocol: "b0i5", "b0i10", "b50i2" or "b50i10".
        metric: "parameters" (millions), "backbones", "last", "average" (percent) or "exemplars".
        dataset: "cifar100" or "imagenet100".
    """
    if metric != "backbones":
        return _cells(table).get((row, protocol, metric, dataset))
    parameters, unit = paper_value(table, row, protocol, "parameters", dataset), _UNITS[dataset]
    count = round(parameters / unit) if parameters else 0
    exact = parameters is not None and abs(parameters - count * unit) < 0.015 * parameters
    return float(count) if exact else None


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
        columns = _table(table)["columns"]
        if name:
            _refuse_unknown(table, "protocol", name, [column["protocol"] for column in columns])
        if dataset and dataset not in {column["dataset"] for column in columns}:
            raise GraceError(f"{table} of the paper has no data set '{dataset}'")
        dataset = dataset or columns[0]["dataset"]
    return table, name or protocol, dataset


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
        _refuse_unknown(table, "row", name, [own["row"] for own in _table(table)["rows"]])
    return table, name or row


def _table(name: str) -> Mapping[str, Any]:
    tables = paper_tables()
    if name not in tables:
        raise GraceError(f"the paper has no table '{name}'{did_you_mean_one_of(name, tables)}")
    return tables[name]


def _refuse_unknown(table: str, kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        meant = did_you_mean_one_of(name, dict.fromkeys(known))
        raise GraceError(f"{table} of the paper has no {kind} '{name}'{meant}")
