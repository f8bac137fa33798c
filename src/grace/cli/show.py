"""Show any result: the same facts as JSON for programs, or as a page for people.

A result is a dataclass, a pydantic model, a mapping, or a list of them. The page has a line for
each fact and a table for each list of mappings; the names of the facts give labels and units.
"""

import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import to_jsonable_python
from rich.console import JustifyMethod
from rich.table import Table

from grace.base.words import in_bytes, in_count, in_interval, in_seconds
from grace.cli.console import emit_json, say, terminal, text_of

_UNITS: Mapping[str, Callable[[float], str]] = {
    "bytes": in_bytes,
    "parameters": in_count,
    "seconds": in_seconds,
    "points": lambda value: f"{value:.1f} points",
    "drop": lambda value: f"{value:.1f} points",
    "cost": lambda value: f"{value:.1f} points",
    "percent": lambda value: f"{value:g} %",
    "mb": lambda value: f"{value:g} MB",
}
"""How a number is written, by a word in its name."""
_SHARES = {"accuracy", "before", "after", "probability", "share"}
"""Words in the name of a number between 0 and 1 that is written in percent."""


def show(
    result: object,
    *,
    as_json: bool = False,
    title: str = "",
    hide: Collection[str] = (),
    after: Sequence[str] = (),
) -> None:
    """Print a result.

    Args:
        result: the facts, in the order of the page.
        as_json: print all of them as JSON, and nothing else.
        title: first line of the page.
        hide: facts that the page leaves out, such as ``digest`` or ``classes.index``.
        after: last lines of the page, such as what to do next.
    """
    facts = to_jsonable_python(result)
    if as_json:
        emit_json(facts)
        return
    if title:
        say(title)
    for block in _blocks(facts, frozenset(hide)):
        say(*([""] if title else []), *block)
        title = title or "-"
    if after:
        say("", *after)


def aligned(rows: Sequence[Sequence[str]], right: str = "") -> list[str]:
    """Return rows of cells as lines of aligned columns; a terminal folds the last one.

    Args:
        rows: texts, equally many in each row; they are escaped here.
        right: one character per column: ">" aligns it to the right, anything else to the left.
    """
    if not rows:
        return []
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10**6
    table = Table.grid(padding=(0, 2), pad_edge=False)
    last = len(rows[0]) - 1
    for number, side in enumerate(right.ljust(last + 1)):
        justify: JustifyMethod = "right" if side == ">" else "left"
        table.add_column(justify=justify, no_wrap=number < last, overflow="fold")
    for row in rows:
        table.add_row(*map(text_of, row))
    console = terminal()
    lines = console.render_lines(table, console.options.update_width(width), pad=False)
    return ["".join(part.text for part in line).rstrip() for line in lines]


def _blocks(facts: Any, hide: Collection[str]) -> Iterator[list[str]]:  # noqa: ANN401 - JSON
    """Yield the lines of a page in blocks: all single facts first, then each table."""
    found = list(_flat(facts, "", hide))
    single = [(_label(name), in_words(value, name)) for name, value in found if not _rows(value)]
    if single:
        yield aligned(single)
    for name, value in found:
        if _rows(value):
            yield [*([_label(name)] if name else []), *_table(value, name, hide)]


def _flat(value: Any, name: str, hide: Collection[str]) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """Yield facts by their dotted names; those without a value are left out."""
    if name in hide or value is None or value in ("", [], {}):
        return
    if isinstance(value, dict) and _is_table(value):
        yield name, [{"name": key, **row} for key, row in value.items()]
    elif isinstance(value, dict) and value.keys() != {"before", "after"}:
        for key, item in value.items():
            yield from _flat(item, f"{name}.{key}" if name else key, hide)
    else:
        yield name, value


def _is_table(value: Mapping[str, Any]) -> bool:
    """Return True if all values are mappings of the same facts."""
    rows = list(value.values())
    return all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows)


def _rows(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(item, dict) for item in value)


def _table(rows: Sequence[Mapping[str, Any]], name: str, hide: Collection[str]) -> list[str]:
    flat = [dict(_flat(row, "", {path.removeprefix(f"{name}.") for path in hide})) for row in rows]
    columns = list(dict.fromkeys(key for row in sorted(flat, key=len)[::-1] for key in row))
    cells = [[in_words(row.get(key), f"{name}.{key}") for key in columns] for row in flat]
    numeric = [all(isinstance(row.get(key, 0), int | float) for row in flat) for key in columns]
    return aligned([[*map(_label, columns)], *cells], "".join("<>"[own] for own in numeric))


def _label(name: str) -> str:
    return name.replace("num_", "").replace("_", " ").replace(".", " ")


def in_words(value: Any, name: str) -> str:  # noqa: ANN401 - JSON
    """Return a fact as people read it; the words of its name tell the unit of a number."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case {"before": before, "after": after}:
            start = f"{in_words(before, name)} → " if before else ""
            return start + in_words(after, name)
        case [float() as low, float() as high] if name.endswith("interval"):
            return in_interval((low, high))
        case list():
            more = f" and {len(value) - 12} more" if len(value) > 12 else ""
            return ", ".join(in_words(item, name) for item in value[:12]) + more
        case dict():
            return ", ".join(f"{_label(key)} {in_words(value[key], key)}" for key in value)
        case int() | float():
            return _number(value, name.replace(".", "_").split("_"))
    return str(value)


def _number(value: float, words: Sequence[str]) -> str:
    unit = next((_UNITS[word] for word in words if word in _UNITS), None)
    if unit is not None:
        return unit(value)
    if isinstance(value, int):
        return str(value)
    return f"{100 * value:.1f} %" if _SHARES & {*words} else f"{value:.4g}"
