"""Read and write YAML without surprises: no duplicate keys, ``1e-3`` a number, ``on`` a word.

PyYAML follows YAML 1.1, where ``1e-3`` is a string, ``on`` is true and ``010`` is eight. Here plain
scalars are read by the core rules of YAML 1.2; a number with a leading zero stays a word, since it
is a class name more often than a number.
"""

import re
from pathlib import Path
from typing import Any, final

import yaml

from grace.base.errors import GraceError
from grace.base.files import read_small
from grace.base.words import in_one_line

MAX_BYTES = 2**20
"""The largest text that is read."""
MAX_DEPTH = 40
MAX_DIGITS = 20
MAX_KEY = 200
MAX_NODES = 100_000
"""The largest number of values, those that aliases repeat included."""


@final
class _Loader(yaml.SafeLoader):
    """The safe loader with YAML 1.2's plain scalars, without duplicate keys, and with limits.

    It knows the types of JSON only: no setting takes a date, a set or bytes.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012
    yaml_constructors = {  # noqa: RUF012
        tag: construct
        for tag, construct in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("str", "null", "seq", "map")
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._num_nodes = 0
        self._nodes_of: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        before = self._num_nodes
        is_alias = isinstance(event, yaml.AliasEvent)
        self._depth += 1
        self._num_nodes += 1
        if self._depth > MAX_DEPTH:
            raise _found_at(event.start_mark, f"it is nested more than {MAX_DEPTH} deep")
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias:
            if id(node) not in self._nodes_of:
                raise _found_at(event.start_mark, "an alias stands within the value it repeats")
            self._num_nodes += self._nodes_of[id(node)]
        else:
            self._nodes_of[id(node)] = self._num_nodes - before
        if self._num_nodes > MAX_NODES:
            raise _found_at(event.start_mark, f"it has more than {MAX_NODES} values")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _found_at(key.start_mark, "a key should be a word, not a list or mapping")
            if len(key.value) > MAX_KEY:
                raise _found_at(key.start_mark, f"a key has more than {MAX_KEY} characters")
            if key.value in seen:
                raise _found_at(
                    key.start_mark, f"the key '{key.value}' stands there twice; keep one"
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        text = str(super().construct_scalar(node))
        if any(char == "\0" or "\ud800" <= char <= "\udfff" for char in text):
            raise _found_at(node.start_mark, "a text has a zero byte or half a surrogate pair")
        return text


def _found_at(mark: Any, what: str) -> GraceError:  # noqa: ANN401 - of C or Python
    return GraceError(f"line {mark.line + 1}, column {mark.column + 1}: {what}")


@final
class _Dumper(yaml.SafeDumper):
    """The safe dumper; quotes words that YAML 1.1 or 1.2 would read as another type."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: list(pairs) for first, pairs in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }


def _truth(loader: _Loader, node: yaml.ScalarNode) -> bool:
    text = loader.construct_scalar(node)
    known = loader.bool_values.get(text.lower())
    if known is None:
        raise _found_at(node.start_mark, f"'{text[:40]}' should be true or false")
    return known


def _whole(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    if len(text.lstrip("+-")) > MAX_DIGITS:
        raise _found_at(node.start_mark, f"a whole number has more than {MAX_DIGITS} digits")
    try:
        value = int(text, 0)
    except ValueError:
        raise _found_at(node.start_mark, f"'{text}' should be a whole number") from None
    if abs(value) >= 2**63:
        raise _found_at(node.start_mark, f"{value} is beyond the numbers of 64 bits")
    return value


def _number(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = loader.construct_scalar(node)
    try:
        return float(text)
    except ValueError:
        raise _found_at(node.start_mark, f"'{text[:40]}' should be a number") from None


_PLAIN = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?",
        list("-+.0123456789"),
    ),
)
for _tag, _pattern, _first in _PLAIN:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), _first)
_Loader.add_constructor("tag:yaml.org,2002:bool", _truth)
_Loader.add_constructor("tag:yaml.org,2002:int", _whole)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)


def read(path: Path, where: str) -> Any:  # noqa: ANN401 - YAML holds anything
    """Read a YAML file that a person named.

    Args:
        path: the file; links are followed.
        where: its name in messages.

    Raises:
        GraceError: if it is missing, no regular file, not UTF-8, or refused by :func:`parse`.
        OSError: if the system refuses to read it.
    """
    data = read_small(path, f"'{where}'", MAX_BYTES, given=True)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise GraceError(f"byte {error.start} is no UTF-8", where=where) from None
    return parse(text, where)


def parse(text: str, where: str) -> Any:  # noqa: ANN401 - YAML holds anything
    """Read YAML text.

    It is refused if it holds a key twice, if it is larger than a megabyte, nested deeper than 40,
    has more than 100,000 values (with those that aliases repeat), whole numbers of more than 64
    bits, or types that JSON lacks.

    Args:
        text: the text.
        where: name of its place in messages.

    Raises:
        GraceError: if the text is not YAML, or is refused; the message starts with ``where``.
    """
    try:
        if len(text) > MAX_BYTES:
            raise GraceError(f"it has {len(text)} characters, more than {MAX_BYTES}")
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise GraceError(f"{where}: {place}{error.problem or 'is no YAML'}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise GraceError(f"{where}: {in_one_line(error)}") from error


def dump(value: Any) -> str:  # noqa: ANN401 - YAML holds anything
    """Write plain values as YAML that :func:`parse` reads back equal."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    if all(line.isprintable() for line in text.split("\n")):
        return text
    # Marks that turn the direction of text and the like are written as YAML's escapes.
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=100)
