"""Tensor files against the safetensors package, and files that nobody honest would write."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load, save
from torch import Tensor

from grace.base.errors import DamagedError
from grace.base.tensors import decode, encode, encoded_size, outline

DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int64,
    torch.int32, torch.bool,
]  # fmt: skip
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 3), max_size=4))
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    data = draw(st.binary(min_size=num_bytes, max_size=num_bytes))
    if dtype == torch.bool:
        data = bytes(byte & 1 for byte in data)
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


TENSORS = st.dictionaries(NAMES, tensors(), max_size=4)
EXAMPLE = {"weight": torch.arange(6.0).reshape(2, 3), "seen": torch.tensor([True, False])}
EXAMPLE_BYTES = encode(EXAMPLE, {"role": "fixed"})


def raw(tensor: Tensor) -> tuple[torch.dtype, tuple[int, ...], list[int]]:
    """Type, shape and bytes: tells NaNs and zeros of both signs apart."""
    flat = tensor.contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tuple(tensor.shape), flat.tolist()


@given(TENSORS, st.dictionaries(NAMES, NAMES, max_size=3))
def test_round_trip(given_tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    data = encode(given_tensors, metadata)
    found, found_metadata = decode(data, "it")
    assert found_metadata == metadata
    assert found.keys() == given_tensors.keys()
    assert all(raw(found[name]) == raw(tensor) for name, tensor in given_tensors.items())
    shapes = {name: (tuple(value.shape), value.dtype) for name, value in given_tensors.items()}
    assert encoded_size(shapes) == len(encode(given_tensors)) == len(encode(given_tensors, {}))


def test_the_safetensors_package_and_we_read_each_other(tmp_path: Path) -> None:
    values = {str(dtype): torch.tensor([[1, 0, 1]]).to(dtype) for dtype in DTYPES}
    values |= {"scalar": torch.tensor(0.5), "none": torch.empty(0, 3), 'ä"\n': torch.ones(1)}
    data = encode(values, {"b": "2", "a": "1"})
    back, metadata = decode(save(values, {"b": "2", "a": "1"}), "it")
    for found in (load(data), back):
        assert found.keys() == values.keys()
        assert all(raw(found[name]) == raw(value) for name, value in values.items())
    (tmp_path / "file").write_bytes(data)
    with safe_open(tmp_path / "file", "pt") as file:
        assert file.metadata() == metadata == {"a": "1", "b": "2"}


def test_equal_input_gives_equal_bytes() -> None:
    weight = torch.arange(24.0).reshape(2, 3, 2, 2)
    expected = encode({"a": weight, "b": weight[0]}, {"x": "1", "y": "2", "z": "3"})
    assert encode({"b": weight[0], "a": weight}, {"z": "3", "y": "2", "x": "1"}) == expected
    channels_last = weight.clone().to(memory_format=torch.channels_last).requires_grad_()
    others = {"a": channels_last, "b": weight[[0]][0].mT.contiguous().mT}
    assert encode(others, {"x": "1", "y": "2", "z": "3"}) == expected
    assert encode({"a": weight, "b": weight[0] + 1}, {"x": "1", "y": "2", "z": "3"}) != expected


def test_tensors_start_at_multiples_of_their_width() -> None:
    data = encode(
        {"a": torch.ones(3, dtype=torch.bool), "b": torch.ones(1), "c": torch.ones(1).double()}
    )
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert {name: entry["data_offsets"] for name, entry in header.items()} == {
        "c": [0, 8],
        "b": [8, 12],
        "a": [12, 15],
    }


@pytest.mark.parametrize(
    "value",
    [
        {"a": torch.ones(1, dtype=torch.int8)},
        {"a": torch.ones(1, dtype=torch.complex64)},
        {"__metadata__": torch.ones(1)},
        {"a": torch.ones([1] * 9)},
        {"\ud800": torch.ones(1)},
    ],
)
def test_what_could_not_be_read_is_not_written(value: dict[str, Tensor]) -> None:
    with pytest.raises(ValueError, match=r"fits no safetensors file|surrogates"):
        encode(value)


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """The example with other bytes somewhere, mostly in its header, or cut off."""
    data = bytearray(EXAMPLE_BYTES)
    place = draw(st.integers(0, len(data)) | st.integers(0, min(len(data), 200)))
    piece = st.binary(max_size=4) | st.text('0123456789[]{}":,-e ', max_size=4).map(str.encode)
    data[place : place + draw(st.sampled_from([0, 1, 4, 1000]))] = draw(piece)
    if draw(st.booleans()):  # the length field is put right, so that what follows is looked at
        end = data.find(b"}}", 8) + 2
        data[:8] = struct.pack("<Q", max(end - 8, 0))
    return bytes(data)


@given(mutations())
def test_mutated_files_are_refused_or_small(data: bytes) -> None:
    try:
        found, metadata = decode(data, "it")
    except DamagedError as error:
        said = str(error)
    else:
        said = "it is damaged: not at all"
        assert sum(t.untyped_storage().nbytes() for t in found.values()) <= len(data)
        assert all(type(value) is str for value in metadata.values())
    assert said.startswith("it is damaged: ")
    assert "\n" not in said


def entry(dtype: object, shape: object, *offsets: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


def forged(header: Any, num_bytes: int = 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(num_bytes)


ONE = b'"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}'
TWICE = b"{" + ONE + b"," + ONE + b"}"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (forged({"a": entry("U8", [5], 0, 5), "b": entry("U8", [4], 4, 8)}), "bytes 5 to 9"),
        (forged({"a": entry("U8", [3], 0, 3), "b": entry("U8", [4], 4, 8)}), "bytes 3 to 7"),
        (forged({"a": entry("U8", [7], 1, 8)}), "tensor 'a' should lie in the bytes 0 to 7"),
        (forged({"a": entry("U8", [7], 0, 7)}), "take 7 of 8 bytes"),
        (forged({"a": entry("U8", [9], 0, 9)}), "take 9 of 8 bytes"),
        (forged({"a": entry("U8", [4], 0, 8)}), "bytes 0 to 4"),
        (forged({"a": entry("F32", [2**40], 0, 2**42)}), "of 8 bytes"),
        (forged({"a": entry("U8", [2**32, 2**32], 0, 0)}, 0), "impossible shape"),
        (forged({"a": entry("U8", [0, 2**63], 0, 0)}, 0), "impossible shape"),
        (forged({"a": entry("U8", [1] * 9, 0, 1)}, 1), "at most 8 items"),
        (forged({"a": entry("U8", [-1, -8], 0, 8)}), "a.shape.0: it should be greater than or"),
        (forged({"a": entry("U8", [True], 0, 1)}, 1), "a.shape.0: it should be a valid integer"),
        (forged({"a": entry("U8", [8.0], 0, 8)}), "a.shape.0: it should be a valid integer"),
        (forged({"a": entry("U8", [8], -8, 0)}), "a.data_offsets.0: it should be greater than"),
        (forged({"a": entry("U8", [8], 0, 8, 8)}), "a.data_offsets: .*at most 2 items"),
        (forged({"a": entry("U8", [8], 8)}), "a.data_offsets: .*at least 2 long"),
        (forged({"a": entry("I8", [8], 0, 8)}), "a.dtype: it should be 'F64', 'F32'"),
        (forged({"a": entry("BOOL", [8], 0, 8)})[:-1] + b"\x02", "booleans other than 0 and 1"),
        (forged({"a": {"dtype": "U8", "shape": [8]}}), "a.data_offsets: Field required"),
        (forged({"a": entry("U8", [8], 0, 8) | {"more": 1}}), "a.more: Extra inputs"),
        (forged(TWICE), "the key 'a' stands twice"),
        (forged({"__metadata__": {"a": 1}}, 0), "__metadata__.a: it should be a text"),
        (forged({"x" * 1000 + "\n": entry("I8", [8], 0, 8)}), "xxx: it should be"),
        (forged({"x" * 1000 + "\n": entry("U8", [8], 1, 9)}), "xxx.* should lie in"),
        (forged([]), "it should be a mapping"),
        (forged(b""), "EOF"),
        (b"", "its header is cut off"),
        (b"\x02\x00\x00\x00{}", "its header is cut off"),
        (struct.pack("<Q", 3) + b"{}", "its header is cut off or too long"),
        (struct.pack("<Q", 2**24 + 8) + b"{}".ljust(2**24 + 8), "is cut off or too long"),
    ],
)
def test_forged_files(data: bytes, says: str) -> None:
    for read in (decode, lambda data, what: outline(lambda n: data[:n], len(data), what)):
        if "booleans" in says and read is not decode:
            continue  # No numbers are read for an outline.
        with pytest.raises(DamagedError, match=says) as caught:
            read(data, "head")
        message = str(caught.value)
        assert message.startswith("head is damaged: ")
        assert "\n" not in message
        assert len(message) < 400


def test_an_outline_has_no_numbers() -> None:
    asked: list[int] = []

    def read(num_bytes: int) -> bytes:
        asked.append(num_bytes)
        return EXAMPLE_BYTES[:num_bytes]

    found, metadata = outline(read, len(EXAMPLE_BYTES), "it")
    assert metadata == {"role": "fixed"}
    assert {name: (t.shape, t.dtype) for name, t in found.items()} == {
        name: (t.shape, t.dtype) for name, t in EXAMPLE.items()
    }
    assert all(tensor.is_meta for tensor in found.values())
    assert asked == [8, len(EXAMPLE_BYTES) - 26]
