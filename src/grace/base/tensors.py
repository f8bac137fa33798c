"""Tensors as bytes of safetensors files and back; equal tensors give equal bytes.

Files are named after their bytes, so the bytes are made here: the safetensors package (0.8) changes
the order of metadata from call to call. That package reads them, after the checks of this module.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, final

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from grace.base.errors import DamagedError, GraceError
from grace.base.files import read_exactly
from grace.base.strict_json import checked, dump, parse
from grace.base.words import in_one_line, quoted

MAX_HEADER_BYTES = 16 * 2**20
MAX_DIMENSIONS = 8

_METADATA = "__metadata__"
_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
Facts = TypeVar("Facts")
_Count = Annotated[int, Field(ge=0)]


@final
class _Entry(BaseModel):
    """What a file's header tells of one tensor."""

    model_config = ConfigDict(strict=True, extra="forbid")

    dtype: Literal["F64", "F32", "F16", "BF16", "I64", "I32", "U8", "BOOL"]
    shape: Annotated[list[_Count], Field(max_length=MAX_DIMENSIONS)]
    data_offsets: Annotated[list[_Count], Field(min_length=2, max_length=2)]


@final
class _Header(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")
    __pydantic_extra__: dict[str, _Entry]

    metadata: Annotated[dict[str, str], Field(alias=_METADATA)] = {}


def encode(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return tensors as the bytes of a safetensors file, the same for equal tensors.

    Args:
        tensors: by name, of any shape of at most 8 dimensions, on any device.
        metadata: text by name.

    Raises:
        GraceError: if a tensor has a type or name that such files cannot hold.
    """
    return b"".join(chunks(tensors, metadata))


def chunks(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of ``encode`` piece by piece, so that hashing them takes no memory."""
    plain = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in plain.items()}
    yield _header(shapes, metadata or {})
    for name in _order(shapes):
        yield plain[name].reshape(-1).view(torch.uint8).numpy().data


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
    _, metadata = outline(lambda length: data[:length], len(data), what)
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise _damaged(what, in_one_line(error)) from error
    for name, tensor in tensors.items():
        # Some operations of torch treat another byte as true, others as false.
        if tensor.dtype == torch.bool and tensor.view(torch.uint8).gt(1).any():
            raise _damaged(what, f"tensor {quoted(name)} has booleans other than 0 and 1")
    return tensors, metadata


def encode_with(facts: object, tensors: Mapping[str, Tensor]) -> bytes:
    """Return facts, which JSON can hold, and tensors as a file's bytes; a hash covers both."""
    text = dump(facts).decode()
    return encode(tensors, {"entry": text, "sha256": _digest(text, tensors)})


def read_with(
    path: Path, what: str, check: Callable[[Any, Mapping[str, Tensor]], Facts]
) -> tuple[Facts, dict[str, Tensor]]:
    """Read the facts and tensors of a file, the header first.

    Args:
        path: the file.
        what: name of the file in messages.
        check: gets the facts and the outline of the tensors, of any shape; what it refuses is not
            read.

    Returns:
        What ``check`` made of the facts, and the tensors, of any shape.

    Raises:
        DamagedError: if it is no such file, or was changed.
    """
    num_bytes = path.lstat().st_size
    form, metadata = outline(partial(read_exactly, path, what, num_bytes), num_bytes, what)
    text = metadata.get("entry", "null")
    facts = check(parse(text.encode(), what), form)
    kept, again = decode(read_exactly(path, what, num_bytes), what)
    if again != metadata or metadata.get("sha256") != _digest(text, kept):
        raise _damaged(what, "its content does not match its SHA-256")
    return facts, kept


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(text.encode())
    for chunk in chunks(tensors):
        digest.update(chunk)
    return digest.hexdigest()


def outline(
    read: Callable[[int], bytes], num_bytes: int, what: str
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the names, shapes and types in a safetensors file, but none of its numbers.

    Nothing that a forged file claims costs memory: the header alone is read, and its tensors must
    fill the file.

    Args:
        read: returns so many bytes from the file's beginning.
        num_bytes: size of the file.
        what: name of the file in messages.

    Returns:
        Tensors on the meta device, of any shape; and the metadata.

    Raises:
        DamagedError: if it is not such a file.
    """
    start = read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(num_bytes - 8, MAX_HEADER_BYTES):
        raise _damaged(what, "its header is cut off or too long")
    header = checked(_Header, parse(read(8 + length)[8:], what), what)
    found, place = {}, 0
    entries = header.__pydantic_extra__
    for name, entry in sorted(entries.items(), key=lambda named: named[1].data_offsets):
        item = _TYPES[entry.dtype].itemsize
        # torch computes strides in 64 bits even where another dimension is zero.
        if math.prod(max(count, 1) for count in entry.shape) * item >= 2**63:
            raise _damaged(what, f"tensor {quoted(name)} has an impossible shape")
        end = place + math.prod(entry.shape) * item
        if entry.data_offsets != [place, end]:
            raise _damaged(what, f"tensor {quoted(name)} should lie in the bytes {place} to {end}")
        found[name] = torch.empty(entry.shape, dtype=_TYPES[entry.dtype], device="meta")
        place = end
    if place != num_bytes - 8 - length:
        raise _damaged(what, f"its tensors take {place} of {num_bytes - 8 - length} bytes")
    return found, header.metadata


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


def _damaged(what: str, why: str) -> DamagedError:
    return DamagedError(f"{what} is damaged: {why}")
