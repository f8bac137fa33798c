"""Read and write YAML without surprises: no duplicate keys, ``1e-3`` a number, ``on`` a word.

PyYAML follows YAML 1.1, where ``1e-3`` is a string, ``on`` is true and ``010`` is eight. Here plain
scalars are read by the core rules of YAML 1.2; a number with a leading zero stays a word, since it
is a class name more often than a number.
"""

import re
from collections.abc import Hashable
from typing import Any, final

import yaml

from grace.text.refusals import GraceError


@final
class _Loader(yaml.SafeLoader):
    """The safe loader with YAML 1.2's plain scalars and without duplicate keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                mark = key.start_mark
                raise GraceError(
                    f"line {mark.line + 1}, column {mark.column + 1}: "
                    f"the key '{key.value}' stands there twice; keep one"
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


@final
class _Dumper(yaml.SafeDumper):
    """The safe dumper; quotes words that YAML 1.1 or 1.2 would read as another type."""

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: list(pairs) for first, pairs in yaml.SafeDumper.yaml_implicit_resolvers.items()
    }


def _number(loader: _Loader, node: yaml.ScalarNode) -> float:
    return float(node.value)


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
_Loader.add_constructor("tag:yaml.org,2002:float", _number)


def parse(text: str, where: str) -> Any:  # noqa: ANN401 - YAML holds anything
    """Read YAML text.

    Raises:
        GraceError: if the text is not YAML or holds a key twice; the message starts with ``where``.
    """
    try:
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
        raise GraceError(f"{where}: {' '.join(str(error).split())}") from error


def dump(value: Any) -> str:  # noqa: ANN401 - YAML holds anything
    """Write plain values as YAML that :func:`parse` reads back equal."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
