"""Read and write JSON that every reader understands in the same way; refuse anything else."""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from grace.base.errors import DamagedError, GraceError, first_problem
from grace.base.files import read_small
from grace.base.words import quoted

MAX_BYTES = 64 * 2**20
MAX_DEPTH = 64
MAX_DIGITS = 20
MAX_VALUES = 1_000_000

# A bracket, or a whole string (or the start of one that never ends), so that brackets in it do not
# count. Possessive quantifiers: no backtracking.
_TOKEN = re.compile(rb'[\[\]{}]|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}

ModelT = TypeVar("ModelT", bound=BaseModel)


def parse(data: bytes, what: str) -> Any:  # noqa: ANN401 - JSON is anything
    """Read one JSON document.

    Besides invalid JSON, it refuses what readers treat differently: encodings other than UTF-8,
    repeated keys, NaN and infinities (also as numbers too large for a float), integers of more than
    20 digits, half surrogates, and nesting deeper than 64. It also refuses too many values, which
    take seconds and much memory to read.

    Args:
        data: the document.
        what: name of the document in messages.

    Raises:
        DamagedError: if it is refused.
    """
    try:
        return _parse(data)
    except ValueError as error:
        raise DamagedError(f"{what} is damaged: {error}") from None


def dump(value: object) -> bytes:
    r"""Write a value as one line of JSON in UTF-8; floats are read back exactly.

    Args:
        value: dicts with text keys, lists, text, numbers, booleans and ``None``.

    Raises:
        GraceError: if ``parse`` refuses the document.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    data = f"{text}\n".encode()
    # Refuse to write a document that could not be read.
    _parse(data)
    return data


def read_model(path: Path, model: type[ModelT], max_bytes: int) -> ModelT:
    """Read a JSON file as a model.

    Args:
        path: a regular file, no link.
        model: the model that it must hold.
        max_bytes: the largest size in bytes that is read.

    Raises:
        DamagedError: if it is missing, a link, larger, or holds something else.
    """
    what = f"'{path}'"
    return checked(model, parse(read_small(path, what, max_bytes), what), what)


def checked(model: type[ModelT], raw: object, what: str) -> ModelT:
    """Validate the content of a file.

    Args:
        model: the model that it must hold.
        raw: its content as plain values.
        what: name of the file in messages.

    Raises:
        DamagedError: if it is not such a model.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise DamagedError(f"{what} is damaged: {first_problem(error)}") from error


def _parse(data: bytes) -> object:
    if len(data) > MAX_BYTES:
        raise GraceError(f"it has {len(data)} bytes, where at most {MAX_BYTES} are expected")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise GraceError(f"byte {error.start} is no UTF-8") from None
    # Commas in texts count too: this is only a limit on time, and real documents are far smaller.
    num_brackets = data.count(b"[") + data.count(b"{")
    if num_brackets + data.count(b",") > MAX_VALUES:
        raise GraceError(f"it has more than {MAX_VALUES} values")
    if num_brackets > MAX_DEPTH:
        _refuse_deep_nesting(data)
    value: object = _DECODER.decode(text)
    if "\\u" in text:
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise GraceError("a text has half a surrogate pair") from None
    return value


def _refuse_deep_nesting(data: bytes) -> None:
    """Check the depth of brackets without recursion, before a recursive parser runs."""
    depth = 0
    for token in _TOKEN.finditer(data):
        depth += _STEPS.get(data[token.start()], 0)
        if depth > MAX_DEPTH:
            raise GraceError(f"it is nested more than {MAX_DEPTH} deep")


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise GraceError(f"the key {quoted(twice)} stands twice in one object")
    return found


def _integer(text: str) -> int:
    if len(text.removeprefix("-")) > MAX_DIGITS:
        raise GraceError(f"the integer {quoted(text)} has more than {MAX_DIGITS} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise GraceError(f"the number {quoted(text)} is too large")
    return value


def _constant(text: str) -> float:
    raise GraceError(f"{text} is no number")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant
)
