"""Read and write JSON that every reader understands in the same way; refuse anything else."""

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from grace.base.errors import DamagedError, GraceError, first_problem
from grace.base.files import read_small
from grace.base.words import quoted

MAX_BYTES = 64 * 2**20
MAX_DIGITS = 20
MAX_VALUES = 1_000_000

ModelT = TypeVar("ModelT", bound=BaseModel)


def parse(data: bytes, what: str) -> Any:  # noqa: ANN401 - JSON is anything
    """Read one JSON document.

    Besides invalid JSON, it refuses what readers treat differently: encodings other than UTF-8,
    repeated keys, NaN and infinities (also as numbers too large for a float), integers of more than
    20 digits, half surrogates, and nesting deeper than 200. It also refuses too many values, which
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
    # Commas in texts count too: this is only a limit on time, and real documents are far smaller.
    if sum(map(data.count, (b"[", b"{", b","))) > MAX_VALUES:
        raise GraceError(f"it has more than {MAX_VALUES} values")
    # This one refuses what is no UTF-8, half a surrogate pair, or nested deeper than 200; the other
    # one sees every key and digit.
    from_json(data, allow_inf_nan=False)
    return _DECODER.decode(data.decode())


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


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_float)
