"""Forged objects whose hashes are right: their names, and what documents say of them, agree."""

import hashlib
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np

from support import hostile_json

Files = Mapping[Path, bytes]
Changes = dict[Path, bytes]
ITEM_BYTES = {"F32": 4, "F64": 8, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}
TYPES = (*ITEM_BYTES, "F8_E4M3", "C64", "I128", "f32", "")


@final
@dataclass(frozen=True)
class Piece:
    """One tensor of a file: what its header says, and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


Pieces = dict[str, Piece]


def object_path(sha256: str) -> Path:
    """Where an object lies."""
    return Path("objects") / f"{sha256}.safetensors"


def read(data: bytes) -> Pieces:
    """Take a sound file apart."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    pieces: Pieces = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        pieces[name] = Piece(
            entry["dtype"], tuple(entry["shape"]), data[start + begin : start + end]
        )
    return pieces


def header_of(pieces: Pieces) -> dict[str, Any]:
    """Describe tensors that follow each other."""
    header: dict[str, Any] = {}
    place = 0
    for name, piece in pieces.items():
        end = place + len(piece.data)
        entry = {"dtype": piece.dtype, "shape": piece.shape, "data_offsets": (place, end)}
        header[name], place = entry, end
    return header


def assemble(header: bytes, data: bytes) -> bytes:
    """Put a header of any kind before any bytes."""
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data


def write(pieces: Pieces) -> bytes:
    """Put a file together again, widest types first as sound files have them."""
    order = sorted(pieces, key=lambda name: (-ITEM_BYTES.get(pieces[name].dtype, 1), name))
    ordered = {name: pieces[name] for name in order}
    data = b"".join(piece.data for piece in ordered.values())
    return assemble(hostile_json.dumps(header_of(ordered)), data)


def read_entry(data: bytes) -> tuple[str, Pieces]:
    """Take an entry of the journal apart: what it says, and its tensors."""
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    text: str = header.pop("__metadata__")["entry"]
    return text, read(assemble(json.dumps(header).encode(), data[start:]))


def write_entry(text: str, pieces: Pieces, *, right: bool) -> bytes:
    """Put an entry together again, with its right digest or a wrong one."""
    bare = write(pieces)
    digest = hashlib.sha256(text.encode("utf-8", "replace") + bare).hexdigest() if right else "0"
    start = 8 + int.from_bytes(bare[:8], "little")
    header = {"__metadata__": {"entry": text, "sha256": digest}, **json.loads(bare[8:start])}
    return assemble(json.dumps(header).encode(), bare[start:])


def refs(document: bytes) -> dict[hostile_json.Place, dict[str, Any]]:
    """List where a sound document refers to objects, and to which."""
    tree, everywhere = hostile_json.parsed(document)
    nodes = ((at, hostile_json.find(tree, at)) for at in everywhere)
    return {
        at: node
        for at, node in nodes
        if isinstance(node, dict) and {"sha256", "bytes"} <= node.keys()
    }


def exchange(files: Files, exchanged: Mapping[str, bytes], documents: list[Path]) -> Changes:
    """Put other objects in place of some, named after what they hold, in some documents."""
    made = {old: hashlib.sha256(data).hexdigest() for old, data in exchanged.items()}
    changes = {object_path(made[old]): data for old, data in exchanged.items()}
    for document in documents:
        tree, _ = hostile_json.parsed(files[document])
        for at, ref in refs(files[document]).items():
            old = ref["sha256"]
            if old in made:
                new = {**ref, "sha256": made[old], "bytes": len(exchanged[old])}
                tree = hostile_json.replaced(tree, at, new)
        changes[document] = hostile_json.dumps(tree)
    return changes


def spoilt(rng: random.Random, files: Files, document: Path) -> tuple[str, Changes]:
    """Forge one object of a document."""
    at, ref = rng.choice(list(refs(files[document]).items()))
    what, sha256 = " ".join(map(str, at)), ref["sha256"]
    pieces = read(files[object_path(sha256)])
    if rng.random() < 0.25:
        how, data = _other_header(rng, pieces)
    else:
        how, changed = rng.choice(OPERATIONS)(rng, pieces)
        data = write(changed)
    return f"{what} of {document}: {how}", exchange(files, {sha256: data}, [document])


def _other_header(rng: random.Random, pieces: Pieces) -> tuple[str, bytes]:
    data = b"".join(piece.data for piece in pieces.values())
    header = hostile_json.dumps(header_of(pieces))
    choice = rng.randrange(5)
    if choice == 0:
        length = rng.choice((0, 1, 2**31, 2**63, 2**64 - 1, len(header) - 1, len(header) + 1))
        return f"header length {length}", length.to_bytes(8, "little") + header + data
    if choice == 1:
        metadata: Any = rng.choice((None, 1, [], {"a": 1}, {"entry": "x" * 10**5}, {"a": {}}))
        forged = hostile_json.dumps({**header_of(pieces), "__metadata__": metadata})
        return f"metadata {metadata!r:.40}", assemble(forged, data)
    if choice == 2:
        extra = rng.choice((b"\0", b"\0" * 4096, data))
        return f"{len(extra)} bytes more", assemble(header, data + extra)
    what, forged = hostile_json.forged(rng, header)
    return f"header: {what}", assemble(forged, data)


def _one(rng: random.Random, pieces: Pieces) -> str:
    return rng.choice(list(pieces))


def _reshaped(rng: random.Random, pieces: Pieces) -> tuple[str, Pieces]:
    name = _one(rng, pieces)
    shape, data = pieces[name].shape, pieces[name].data
    total = int(np.prod(shape))
    found = rng.choice(
        (shape[::-1], (total,), (1, *shape), (*shape, 1), (0, *shape[1:]), (total, 0))
    )
    if 0 in found:
        data = b""
    return f"{name} of shape {found}", {
        **pieces,
        name: replace(pieces[name], shape=found, data=data),
    }


def _resized(rng: random.Random, pieces: Pieces) -> tuple[str, Pieces]:
    name = _one(rng, pieces)
    piece, times = pieces[name], rng.choice((2, 3, 10))
    if not piece.shape:
        return _reshaped(rng, pieces)
    shape = (piece.shape[0] * times, *piece.shape[1:])
    return f"{name} {times} times", {**pieces, name: Piece(piece.dtype, shape, piece.data * times)}


def _retyped(rng: random.Random, pieces: Pieces) -> tuple[str, Pieces]:
    name, dtype = _one(rng, pieces), rng.choice(TYPES)
    piece = pieces[name]
    data = piece.data
    if rng.random() < 0.5 and dtype in ITEM_BYTES:
        # So many numbers of the other type.
        count = len(data) // ITEM_BYTES[piece.dtype]
        data = (data * 8)[: count * ITEM_BYTES[dtype]]
    return f"{name} as {dtype}", {**pieces, name: Piece(dtype, piece.shape, data)}


def _renamed(rng: random.Random, pieces: Pieces) -> tuple[str, Pieces]:
    name = _one(rng, pieces)
    new = rng.choice(
        (f"{name}2", "", "\x1b[2J\n", "x" * 100_000, "../x", "__metadata__", "__class__")
    )
    twin = {new if own == name else own: piece for own, piece in pieces.items()}
    return f"{name} renamed {new!r:.40}", twin


def _dropped(rng: random.Random, pieces: Pieces) -> tuple[str, Pieces]:
    name = _one(rng, pieces)
    return f"{name} dropped", {own: piece for own, piece in pieces.items() if own != name}


def _added(rng: random.Random, pieces: Pieces) -> tuple[str, Pieces]:
    name = rng.choice(("extra", f"{_one(rng, pieces)}.weight", "\u202e"))
    return f"{name!r} added", {**pieces, name: Piece("F32", (1,), b"\0\0\0\0")}


def _swapped(rng: random.Random, pieces: Pieces) -> tuple[str, Pieces]:
    one, two = _one(rng, pieces), _one(rng, pieces)
    return f"{one} and {two} swapped", {**pieces, one: pieces[two], two: pieces[one]}


def _renumbered(rng: random.Random, pieces: Pieces) -> tuple[str, Pieces]:
    name = rng.choice([n for n, piece in pieces.items() if len(piece.data) >= 4])
    number = rng.choice((np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -1.0, 0.0, 1e20, 1e10))
    values = np.frombuffer(pieces[name].data, np.float32).copy()
    if rng.random() < 0.5:
        values[rng.randrange(len(values))] = number
    else:
        values[:] = number
    return f"{name} holds {number}", {**pieces, name: replace(pieces[name], data=values.tobytes())}


def _everything(rng: random.Random, pieces: Pieces) -> tuple[str, Pieces]:
    factor = np.float32(rng.choice((1e30, -1.0, 0.0, 1e-40)))
    changed = {
        name: replace(p, data=(np.frombuffer(p.data, np.float32) * factor).tobytes())
        for name, p in pieces.items()
        if p.dtype == "F32"
    }
    return f"all numbers times {factor}", {**pieces, **changed}


def _empty(rng: random.Random, pieces: Pieces) -> tuple[str, Pieces]:
    return "no tensor", {}


OPERATIONS: tuple[Callable[[random.Random, Pieces], tuple[str, Pieces]], ...] = (
    _reshaped,
    _resized,
    _retyped,
    _renamed,
    _dropped,
    _added,
    _swapped,
    _renumbered,
    _renumbered,
    _renumbered,
    _everything,
    _empty,
)
