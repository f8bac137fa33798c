"""Read and write YAML without surprises: no duplicate keys, ``1e-3`` a number, ``on`` a word.

PyYAML follows YAML 1.1, where ``1e-3`` is a string, ``on`` is true and ``010`` is eight. Here its
parser gives the events, and plain scalars are read by the core rules of YAML 1.2. A number with a
leading zero stays a word, since it is a class name more often than a number.
"""

import re
from collections.abc import Iterator
from typing import Any, final

import yaml

from grace.base.errors import GraceError
from grace.base.words import in_one_line

MAX_BYTES = 2**20
"""The largest text that is read."""
MAX_DEPTH = 40
MAX_NODES = 100_000
"""The largest number of values, those that aliases repeat included."""

_WORDS = re.compile(
    r"^(?:(?P<null>~|null|Null|NULL|)|(?P<truth>true|True|TRUE|false|False|FALSE)"
    r"|(?P<whole>[-+]?(?:0|[1-9][0-9]*))"
    r"|(?P<number>[-+]?(?:\.[0-9]+|(?:0|[1-9][0-9]*)(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?))$"
)
"""The plain words that are no texts by the core rules of YAML 1.2."""


@final
class _Reader:
    """Turns the parser's events into values, with limits; it knows the types of JSON only."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._num_values = 0
        self._anchors: dict[str, tuple[Any, int]] = {}

    def value(self, event: Any, depth: int = 0) -> Any:  # noqa: ANN401 - YAML holds anything
        """Return the value that starts with an event; take the events up to its end."""
        before = self._num_values
        self._num_values += 1
        _need(depth < MAX_DEPTH, event, f"it is nested more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.AliasEvent):
            name = str(event.anchor)
            _need(name in self._anchors, event, f"no value before it has the anchor '&{name}'")
            found, size = self._anchors[name]
            self._num_values += size
        elif isinstance(event, yaml.SequenceStartEvent):
            found = [self.value(entry, depth + 1) for entry in self._until(yaml.SequenceEndEvent)]
        elif isinstance(event, yaml.MappingStartEvent):
            found = {}
            for key in self._until(yaml.MappingEndEvent):
                is_word = isinstance(key, yaml.ScalarEvent)
                _need(is_word, key, "a key should be a word, not a list or mapping")
                name = _text(key)
                self._num_values += 1
                _need(name not in found, key, f"the key '{name}' stands there twice; keep one")
                found[name] = self.value(next(self._events), depth + 1)
        else:
            found = _scalar(event)
        if not isinstance(event, yaml.AliasEvent):
            _need(event.tag is None, event, f"the tag '{event.tag}' has no meaning here")
            if event.anchor is not None:
                is_new = event.anchor not in self._anchors
                _need(is_new, event, f"the anchor '&{event.anchor}' stands there twice")
                self._anchors[event.anchor] = (found, self._num_values - before)
        _need(self._num_values <= MAX_NODES, event, f"it has more than {MAX_NODES} keys and values")
        return found

    def _until(self, end: type[yaml.Event]) -> Iterator[Any]:
        while not isinstance(event := next(self._events), end):
            yield event


def _scalar(event: yaml.ScalarEvent) -> Any:  # noqa: ANN401 - YAML holds anything
    text, is_plain = _text(event), event.implicit[0]
    word = _WORDS.match(text) if is_plain else None
    match word and word.lastgroup:
        case "null":
            return None
        case "truth":
            return text.lower() == "true"
        case "whole":
            fits = len(text) <= 20 and abs(int(text)) < 2**63
            _need(fits, event, f"{text[:20]} is beyond the whole numbers of 64 bits")
            return int(text)
        case "number":
            return float(text)
    return text


def _text(event: yaml.ScalarEvent) -> str:
    is_odd = any(char == "\0" or "\ud800" <= char <= "\udfff" for char in event.value)
    _need(not is_odd, event, "a text has a zero byte or half a surrogate pair")
    return event.value


def _need(holds: bool, event: yaml.Event, what: str) -> None:
    if not holds:
        mark = event.start_mark
        assert mark is not None
        raise GraceError(f"line {mark.line + 1}, column {mark.column + 1}: {what}")


def parse(text: str | bytes, where: str) -> Any:  # noqa: ANN401 - YAML holds anything
    """Read YAML text.

    It is refused if it holds a key or an anchor twice, is larger than a megabyte, nested deeper
    than 40, has more than 100,000 keys and values (with those that aliases repeat), whole numbers
    of more than 64 bits, or tags.

    Args:
        text: the text, or its bytes in UTF-8.
        where: name of its place in messages.

    Raises:
        GraceError: if the text is not YAML, or is refused; the message starts with ``where``.
    """
    try:
        if len(text) > MAX_BYTES:
            raise GraceError(f"it has {len(text)} characters, more than {MAX_BYTES}")
        text = text if isinstance(text, str) else text.decode("utf-8-sig")
        events = yaml.parse(text, Loader=yaml.SafeLoader)
        reader = _Reader(events)
        documents = [reader.value(event) for event in events if isinstance(event, yaml.NodeEvent)]
        if len(documents) > 1:
            raise GraceError(f"it has {len(documents)} documents; keep one")
        return documents[0] if documents else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise GraceError(f"{where}: {place}{error.problem or 'is no YAML'}") from error
    except (ValueError, yaml.YAMLError) as error:
        raise GraceError(f"{where}: {in_one_line(error)}") from error


@final
class _Dumper(yaml.SafeDumper):
    """The safe dumper; quotes words that YAML 1.1 or 1.2 would read as another type."""


_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _WORDS, list("~nNtTfF-+.0123456789"))


def dump(value: Any) -> str:  # noqa: ANN401 - YAML holds anything
    """Write plain values as YAML that :func:`parse` reads back equal."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    if all(line.isprintable() for line in text.split("\n")):
        return text
    # Marks that turn the direction of text and the like are written as YAML's escapes.
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=100)
