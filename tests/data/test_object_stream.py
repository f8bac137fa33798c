"""The reader of CIFAR's object files against Python's own, and against hostile streams."""

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grace.data.object_stream import read_object_stream


def python2_stream(names: list[str], labels: list[int], pixels: np.ndarray) -> bytes:
    """Write what Python 2 wrote for CIFAR: protocol 2, byte strings, numpy.core's constructor."""

    def short(text: str) -> bytes:
        return b"U" + bytes([len(text)]) + text.encode()

    def number(value: int) -> bytes:
        return b"K" + bytes([value]) if value < 256 else b"J" + struct.pack("<i", value)

    raw = pixels.tobytes()
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x05cnumpy\nndarray\nK\x00\x85U\x01b\x87Rq\x06"
        b"(K\x01" + b"".join(number(side) for side in pixels.shape) + b"\x86cnumpy\ndtype\n"
        b"U\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        b"T" + struct.pack("<i", len(raw)) + raw + b"tb"
    )
    return (
        b"\x80\x02}q\x01(" + short("batch_label") + short("training batch 1 of 5")
        + short("fine_labels") + b"]q\x02(" + b"".join(number(label) for label in labels) + b"e"
        + short("filenames") + b"]q\x03(" + b"".join(short(name) for name in names) + b"e"
        + short("data") + array + b"u."
    )  # fmt: skip


def same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert list(found) == list(expected)
    for key, value in expected.items():
        if isinstance(value, np.ndarray):
            assert np.array_equal(found[key], value)
        else:
            assert found[key] == value


def test_a_python_2_stream_reads_as_pythons_own_loader_reads_it(tmp_path: Path) -> None:
    pixels = np.arange(2 * 400, dtype=np.uint8).reshape(2, 400)
    stream = python2_stream(["a.png", "b.png"], [3, 99], pixels)
    path = tmp_path / "train"
    path.write_bytes(stream)
    found = read_object_stream(path)
    same(found, pickle.loads(stream, encoding="latin1"))  # noqa: S301
    assert np.array_equal(found["data"], pixels)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("as_bytes", [True, False])
def test_streams_of_python_3_read_the_same(tmp_path: Path, protocol: int, as_bytes: bool) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
    content: dict[str, Any] = {
        "data": pixels,
        "labels": [0, 300, 70000],
        "label_names": ["apple", "b\u00e9b\u00e9"],
        "num_vis": 3072,
        "nothing": None,
    }
    keyed = {key.encode(): value for key, value in content.items()} if as_bytes else content
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps(keyed, protocol=protocol))
    same(read_object_stream(path), content)


def test_a_fortran_ordered_array_keeps_its_layout(tmp_path: Path) -> None:
    pixels = np.asfortranarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": pixels}, protocol=2))
    assert np.array_equal(read_object_stream(path)["data"], pixels)


class _Hostile:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, ("touch never",)


def test_a_stream_that_wants_to_run_something_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    for protocol in (0, 2, 4):
        path.write_bytes(pickle.dumps({"data": _Hostile()}, protocol=protocol))
        with pytest.raises(ValueError, match=r"batch' is refused: it mentions '\w+ system'"):
            read_object_stream(path)


def test_other_things_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "batch"
    for content, reason in (
        ({"data": np.zeros(3)}, "wants to call"),
        ({"data": {1, 2}}, "builtin"),
        ({"data": Path("/")}, "pathlib"),
    ):
        path.write_bytes(pickle.dumps(content, protocol=2))
        with pytest.raises(ValueError, match=reason):
            read_object_stream(path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    whole = pickle.dumps({"data": np.zeros((2, 5), dtype=np.uint8)}, protocol=2)
    path = tmp_path / "batch"
    for stream in (b"", whole[:40], whole[:-20], b"not a stream", b"\x80\x02e.", b"\x80\x02q\x01."):
        path.write_bytes(stream)
        with pytest.raises(ValueError, match=r"batch' is damaged .*fetch it anew"):
            read_object_stream(path)
    path.write_bytes(pickle.dumps([1], protocol=2))
    with pytest.raises(ValueError, match="holds no dictionary"):
        read_object_stream(path)
