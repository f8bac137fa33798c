"""Convert nested values of tensors, texts and numbers to JSON with named tensors, or to bytes."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from grace.base import strict_json, tensors


def take_apart(value: Any, kept: dict[str, Tensor]) -> Any:  # noqa: ANN401 - JSON
    """Convert a value to JSON; put its tensors, of any shape, into ``kept``.

    Args:
        value: a tensor, ``None``, a boolean, number or text, or a mapping with text keys, list or
            tuple of such values.
        kept: receives the tensors by name.
    """
    if isinstance(value, Tensor):
        name = str(len(kept))
        kept[name] = value
        return {"tensor": name}
    if isinstance(value, Mapping):
        assert all(isinstance(key, str) for key in value)
        return {"mapping": {key: take_apart(item, kept) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return {"list": [take_apart(item, kept) for item in value]}
    assert value is None or isinstance(value, bool | int | float | str), type(value)
    return {"plain": value}


def put_together(described: Mapping[str, Any], kept: Mapping[str, Tensor]) -> Any:  # noqa: ANN401
    """Undo ``take_apart``, with its tensors of any shape; a tuple becomes a list."""
    if "tensor" in described:
        return kept[described["tensor"]]
    if "mapping" in described:
        return {key: put_together(item, kept) for key, item in described["mapping"].items()}
    if "list" in described:
        return [put_together(item, kept) for item in described["list"]]
    return described["plain"]


def encode(value: Any) -> bytes:  # noqa: ANN401
    """Return a value of ``take_apart`` as bytes.

    Raises:
        GraceError: if it holds a number that is not finite, or a tensor of an unusual type.
    """
    kept: dict[str, Tensor] = {}
    described = take_apart(value, kept)
    return tensors.encode(kept, {"value": strict_json.dump(described).decode()})


def decode(data: bytes, what: str) -> Any:  # noqa: ANN401
    """Undo ``encode``: tensors are on the CPU, tuples become lists.

    Raises:
        DamagedError: if the bytes are something else; ``what`` is their name in the message.
    """
    kept, metadata = tensors.decode(data, what)
    return put_together(strict_json.parse(metadata["value"].encode(), what), kept)
