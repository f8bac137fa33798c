"""Gigabytes that a stranger's file claims are refused by its header, before they are read."""

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from grace.base import files
from grace.base.errors import DamagedError
from grace.engine.journal import Journal
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.replay import Replay
from support.hostile_model import Model
from support.interruptions import interrupted
from support.tiny_streams import SIZE, class_names, labelled, recipe, settings

HOLES = 2 << 30
"""Bytes that a file of holes says to have."""


@pytest.fixture(autouse=True)
def small_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no file of more than 100 MB be read."""
    read = files._read

    def small(file: Any, size: int, what: str) -> bytes:
        assert size < 10**8, f"{what} is read, all its {size} bytes"
        return read(file, size, what)

    monkeypatch.setattr(files, "_read", small)


def holes(path: Path, tensors: dict[str, tuple[str, list[int]]], metadata: Any = None) -> int:
    """Write a safetensors file whose tensors are holes; return its size."""
    items = {"F32": 4, "U8": 1}
    entries: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    place = 0
    for name, (kind, shape) in tensors.items():
        end = place + items[kind] * int(math.prod(shape))
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [place, end]}
        place = end
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + place)
    return 8 + len(header) + place


MANY = ("U8", [HOLES // 192, 3, SIZE, SIZE])


@pytest.mark.parametrize(
    ("place", "tensors", "message"),
    [
        ("parts/backbone.0", {"x": ("F32", [HOLES // 4])}, "unknown tensor|lacks tensor"),
        ("parts/head", {"bias": ("F32", [HOLES // 4])}, "lacks tensor"),
        ("exemplars/0", {"images": MANY}, "images of class 0 take"),
        ("exemplars/0", {"images": MANY, "num": True}, r"exemplars, and memory\.size is|too many"),
        ("validation/0", {"images": MANY}, "images of class 0 take"),
        ("calibration", {"familiarities": ("F32", [HOLES // 4])}, "holds no scores"),
    ],
)
def test_an_object_of_holes(
    spoilt: Model, place: str, tensors: dict[str, Any], message: str
) -> None:
    """With the right hash it cost 4.4 to 6.5 GB of memory before it was refused."""
    home, sha256 = spoilt.path, "0" * 64
    document = home / "versions" / f"{ModelStore.open(home).current():04d}.json"
    facts = owner = json.loads(document.read_bytes())
    for key in place.split("/"):
        owner = owner[key]
    if tensors.pop("num", False):
        owner["num"] = facts["original_counts"]["0"] = HOLES // 192
    size = holes(home / "objects" / f"{sha256}.safetensors", tensors)
    owner |= {"sha256": sha256, "bytes": size}
    document.write_text(json.dumps(facts))
    with pytest.raises(DamagedError, match=message):
        Learner.load(home)


@pytest.mark.usefixtures("tiny_backbones")
def test_an_entry_of_a_journal_of_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal.__init__, "__defaults__", (0.0, 0.0))
    method = Replay.Settings(base=recipe(2), update=recipe())
    made = Learner.create(settings(method), shape=(3, SIZE, SIZE), directory=tmp_path / "model")
    data = labelled({0: 8, 1: 8})
    with interrupted(Journal, "offer_phase", after=True):
        made.update(data.images, class_names(data))
    (entry,) = (tmp_path / "model" / "pending").glob("*.safetensors")
    start = entry.read_bytes()
    header = json.loads(start[8 : 8 + int.from_bytes(start[:8], "little")])
    holes(entry, {"x": ("F32", [HOLES // 4])}, header["__metadata__"])
    again = Learner.load(tmp_path / "model")
    assert again.update(data.images, class_names(data)).accepted


def test_the_header_alone_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    assert files.read_exactly(path, "it", 10, 4) == b"0123"
    assert files.read_exactly(path, "it", 10, 40) == b"0123456789"
    with pytest.raises(DamagedError, match="it has 10 bytes instead of 11"):
        files.read_exactly(path, "it", 11, 4)
