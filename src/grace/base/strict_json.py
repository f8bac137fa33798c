"""Read and write JSON that every reader understands in the same way; refuse anything else."""

import json
import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from grace.base.errors import DamagedError, GraceError, first_problem
from grace.base.files import read_small

MAX_BYTES = 64 * 2**20
MAX_DEPTH = 64
MAX_DIGITS = 20
MAX_VALUES = 1_000_000

# A bracket, or a whole string (or the start of one that never ends), so that brackets in it do not
# count. Possessive quantifiers: no backtracking.
_TOKEN = re.compile(rb'[\[\]{}]|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))
# Numbers that need a closer look are found by a pattern of their characters, all digits as "0";
# text may match too, which costs only time. A number that is too large for a float has a long
# exponent or many digits.
_KINDS = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_NUMBER = b"0" * (MAX_DIGITS + 1)
_HUGE_NUMBER = b"e000"
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def parse(data: bytes, what: str, max_bytes: int = MAX_BYTES, max_values: int = MAX_VALUES) -> Any:  # noqa: ANN401 - JSON is anything
    """Read one JSON document.

    Besides invalid JSON, it refuses what readers treat differently: encodings other than UTF-8,
    repeated keys, NaN and infinities (also as numbers too large for a float), integers of more than
    20 digits, half surrogates, and nesting deeper than 64. It also refuses too many values, which
    take seconds and much memory to read.

    Args:
        data: the document.
        what: name of the document in messages.
        max_bytes: the largest size that is read.
        max_values: the largest number of values that is read.

    Raises:
        DamagedError: if it is refused.
    """
    try:
        return _parse(data, max_bytes, max_values)
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
    _parse(data, MAX_BYTES, MAX_VALUES)
    return data


def _parse(data: bytes, max_bytes: int, max_values: int) -> object:
    if len(data) > max_bytes:
        raise GraceError(f"it has {len(data)} bytes, where at most {max_bytes} are expected")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise GraceError(f"byte {error.start} is no UTF-8") from None
    # Commas in texts count too: this is only a limit on time, and real documents are far smaller.
    num_brackets = data.count(b"[") + data.count(b"{")
    if len(data) > max_values and num_brackets + data.count(b",") > max_values:
        raise GraceError(f"it has more than {max_values} values")
    if num_brackets > MAX_DEPTH:
        _refuse_deep_nesting(data)
    if text.startswith("\ufeff"):
        raise GraceError("it begins with a byte order mark (BOM)")
    kinds = data.translate(_KINDS, b"+")
    is_long = _LONG_NUMBER in kinds
    value: object = _decoder(is_long, is_long or _HUGE_NUMBER in kinds).decode(text)
    if "\\u" in text:
        _refuse_half_surrogates(value)
    return value


@cache
def _decoder(has_long: bool, has_huge: bool) -> json.JSONDecoder:
    """Make a decoder; a call for each number would take most of the time of a large document.

    Args:
        has_long: look at every number, as one may have too many digits.
        has_huge: look at every number with a fraction or an exponent, as one may be too large.
    """
    return json.JSONDecoder(
        object_pairs_hook=_object,
        parse_int=_integer if has_long else None,
        parse_float=_float if has_huge else None,
        parse_constant=_constant,
    )


def _refuse_deep_nesting(data: bytes) -> None:
    """Check the depth of brackets without recursion, before a recursive parser runs."""
    if b"\\" not in data:
        data = data.translate(None, _OTHERS)  # What remains is searched many times faster.
        # Where no text holds a bracket, its two quotes stand side by side now.
        brackets = data.replace(b'""', b"")
        for _ in range(MAX_DEPTH // 2 if b'"' not in brackets else 0):
            brackets = brackets.replace(b"[]", b"").replace(b"{}", b"")  # One or two levels.
            if not brackets:
                return
    depth = 0
    for token in _TOKEN.finditer(data):
        depth += _STEPS.get(data[token.start()], 0)
        if depth > MAX_DEPTH:
            raise GraceError(f"it is nested more than {MAX_DEPTH} deep")


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise GraceError(f"the key {_shortened(twice)} stands twice in one object")
    return found


def _integer(text: str) -> int:
    if len(text.removeprefix("-")) > MAX_DIGITS:
        raise GraceError(f"the integer {_shortened(text)} has more than {MAX_DIGITS} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise GraceError(f"the number {_shortened(text)} is too large")
    return value


def _constant(text: str) -> float:
    raise GraceError(f"{text} is no number")


def _refuse_half_surrogates(value: object) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise GraceError("a text has half a surrogate pair") from None


def _shortened(text: str) -> str:
    return ascii(text if len(text) <= 40 else f"{text[:40]}…")


ModelT = TypeVar("ModelT", bound=BaseModel)


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
