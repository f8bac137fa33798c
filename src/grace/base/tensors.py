"""Tensors as bytes of safetensors files and back; equal tensors give equal bytes.

Files are named after their bytes, so the bytes are made here: the safetensors package (0.8) changes
the order of metadata from call to call. That package reads them, after the checks of this module.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeGuard

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from grace.base.errors import DamagedError, GraceError
from grace.base.strict_json import dump, parse
from grace.base.words import in_one_line

MAX_HEADER_BYTES = 16 * 2**20
MAX_DIMENSIONS = 8

_METADATA = "__metadata__"
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_ITEM_BYTES = {name: dtype.itemsize for dtype, name in _NAMES.items()}


def encode(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return tensors as the bytes of a safetensors file, the same for equal tensors.

    Args:
        tensors: by name, of any shape of at most 8 dimensions, on any device.
        metadata: text by name.

    Raises:
        GraceError: if a tensor has a type or name that such files cannot hold.
    """
    return b"".join(chunks(tensors, metadata))


def encoded_size(shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> int:
    """Return the number of bytes that ``encode`` gives for these shapes, without metadata.

    Args:
        shapes: shape and type by name.

    Raises:
        GraceError: if a tensor has a type or name that such files cannot hold.
    """
    return len(_header(shapes, {})) + sum(
        math.prod(shape) * dtype.itemsize for shape, dtype in shapes.values()
    )


def decode(data: bytes, what: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read tensors from the bytes of a safetensors file.

    The header is checked before tensors are made: each tensor has a separate piece of ``data``, so
    that forged sizes cannot ask for more memory than the file has.

    Args:
        data: the whole file.
        what: name of the file in messages.

    Returns:
        The tensors, of any shape, on the CPU in new memory; and the metadata.

    Raises:
        DamagedError: if it is not such a file.
    """
    header, metadata = _checked_header(data, len(data), what)
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise _damaged(what, in_one_line(error)) from error
    assert tensors.keys() == header.keys()
    for name, tensor in tensors.items():
        # Some operations of torch treat another byte as true, others as false.
        if tensor.dtype == torch.bool and tensor.view(torch.uint8).gt(1).any():
            raise _damaged(what, f"tensor {_short(name)} has booleans other than 0 and 1")
    return tensors, metadata


def outline(
    read: Callable[[int], bytes], num_bytes: int, what: str
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the names, shapes and types in a safetensors file, but none of its numbers.

    Nothing that a forged file claims costs memory: the header alone is read, and it is checked
    against the file's size.

    Args:
        read: returns so many bytes from the file's beginning.
        num_bytes: size of the file.
        what: name of the file in messages.

    Returns:
        Tensors on the meta device, of any shape; and the metadata.

    Raises:
        DamagedError: if it is not such a file.
    """
    length = _header_length(read(8), num_bytes, what)
    header, metadata = _checked_header(read(8 + length), num_bytes, what)
    types = {name: dtype for dtype, name in _NAMES.items()}
    found = {
        name: torch.empty(entry["shape"], dtype=types[entry["dtype"]], device="meta")
        for name, entry in header.items()
    }
    return found, metadata


def chunks(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of ``encode`` piece by piece, so that hashing them takes no memory.

    Args:
        tensors: by name, of any shape.
        metadata: text by name.
    """
    plain = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in plain.items()}
    yield _header(shapes, metadata or {})
    for name in _order(shapes):
        yield plain[name].reshape(-1).view(torch.uint8).numpy().data


def _order(shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> list[str]:
    """Sort names by item size, largest first: every tensor is then aligned to its item size."""
    return sorted(shapes, key=lambda name: (-shapes[name][1].itemsize, name))


def _header(
    shapes: Mapping[str, tuple[tuple[int, ...], torch.dtype]], metadata: Mapping[str, str]
) -> bytes:
    """Return the header with its length, padded to a multiple of eight bytes."""
    entries: dict[str, Any] = {}
    if metadata:
        entries[_METADATA] = {key: metadata[key] for key in sorted(metadata)}
    place = 0
    for name in _order(shapes):
        shape, dtype = shapes[name]
        if name == _METADATA or dtype not in _NAMES or len(shape) > MAX_DIMENSIONS:
            raise GraceError(f"tensor {name!r} of {dtype}, shape {shape}, fits no safetensors file")
        end = place + math.prod(shape) * dtype.itemsize
        entries[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": (place, end)}
        place = end
    text = dump(entries).rstrip()
    text += b" " * (-len(text) % 8)
    assert len(text) <= MAX_HEADER_BYTES, len(text)
    return len(text).to_bytes(8, "little") + text


def _header_length(start: bytes, num_bytes: int, what: str) -> int:
    """Return the length of the header in a file of so many bytes."""
    if len(start) < 8:
        raise _damaged(what, "it ends before its header")
    length = int.from_bytes(start[:8], "little")
    if length > min(num_bytes - 8, MAX_HEADER_BYTES):
        raise _damaged(what, f"its header of {length} bytes is too long")
    return length


def _checked_header(
    start: bytes, num_bytes: int, what: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read the header and check that its tensors fill the file.

    Args:
        start: the file, or its beginning with the whole header.
        num_bytes: size of the file.
        what: name of the file in messages.

    Returns:
        The tensors' entries, and the metadata.
    """
    length = _header_length(start, num_bytes, what)
    header = parse(start[8 : 8 + length], what)
    if not isinstance(header, dict):
        raise _damaged(what, "its header is no object")
    metadata = _checked_metadata(header.pop(_METADATA, {}), what)
    spans = sorted((*_span(name, entry, what), name) for name, entry in header.items())
    place = 0
    for begin, end, name in spans:
        if begin != place:
            raise _damaged(what, f"tensor {_short(name)} leaves a gap or overlaps another")
        place = end
    left = num_bytes - 8 - length
    if place != left:
        raise _damaged(what, f"its tensors take {place} bytes, but {left} follow")
    return header, metadata


def _checked_metadata(metadata: object, what: str) -> dict[str, str]:
    if not isinstance(metadata, dict):
        raise _damaged(what, "its metadata are no object")
    if not all(isinstance(value, str) for value in metadata.values()):
        raise _damaged(what, "its metadata are not text")
    return metadata


def _span(name: str, entry: object, what: str) -> tuple[int, int]:
    """Check one tensor's entry; return where its bytes begin and end."""
    tensor = f"tensor {_short(name)}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise _damaged(what, f"{tensor} has other entries than dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise _damaged(what, f"{tensor} has an unknown type")
    if not _are_counts(shape) or len(shape) > MAX_DIMENSIONS:
        raise _damaged(what, f"{tensor} has an impossible shape")
    if not _are_counts(offsets) or len(offsets) != 2:
        raise _damaged(what, f"{tensor} has impossible offsets")
    # torch computes strides in 64 bits even where another dimension is zero.
    if math.prod(max(length, 1) for length in shape) * _ITEM_BYTES[dtype] >= 2**63:
        raise _damaged(what, f"{tensor} has an impossible shape")
    begin, end = offsets
    num_bytes = math.prod(shape) * _ITEM_BYTES[dtype]
    if end - begin != num_bytes:
        raise _damaged(what, f"{tensor} of {num_bytes} bytes has room for {end - begin}")
    return begin, end


def _are_counts(values: object) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _damaged(what: str, why: str) -> DamagedError:
    return DamagedError(f"{what} is damaged: {why}")


def _short(name: str) -> str:
    return ascii(name if len(name) <= 80 else f"{name[:80]}…")


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


def encode_value(value: Any) -> bytes:  # noqa: ANN401
    """Return a value of ``take_apart`` as bytes.

    Raises:
        GraceError: if it holds a number that is not finite, or a tensor of an unusual type.
    """
    kept: dict[str, Tensor] = {}
    described = take_apart(value, kept)
    return encode(kept, {"value": dump(described).decode()})


def decode_value(data: bytes, what: str) -> Any:  # noqa: ANN401
    """Undo ``encode_value``: tensors are on the CPU, tuples become lists.

    Raises:
        DamagedError: if the bytes are something else; ``what`` is their name in the message.
    """
    kept, metadata = decode(data, what)
    return put_together(parse(metadata["value"].encode(), what), kept)
