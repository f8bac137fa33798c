"""Names of files that are no UTF-8: kept as they are, and shown to people with escapes."""

import json
import os
import sys
from pathlib import Path

import pytest

from support.commands import call
from support.learn_calls import FINETUNE, learn, refused
from support.picture_folders import folder, picture
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names"),
    pytest.mark.usefixtures("tiny_backbones"),
]
ODD = os.fsdecode(b"\xff\xfe")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Two classes; all files of one have such names."""
    root = folder(tmp_path / "images", "ant", "bee", count=6)
    for path in (root / "bee").iterdir():
        path.rename(path.with_name(f"{ODD}{path.name}"))
    return root


def test_class_names_must_be_text(images: Path, tmp_path: Path) -> None:
    (images / "bee").rename(images / f"b{ODD}")
    assert r"'b\udcff\udcfe' has a control character" in refused(
        images, "--model", tmp_path / "model", *FINETUNE
    )
    assert not (tmp_path / "model").exists()


def test_they_are_learnt_skipped_and_predicted(images: Path, tmp_path: Path) -> None:
    (images / "bee" / f"broken{ODD}.png").write_bytes(b"x")
    model = tmp_path / f"model{ODD}"
    assert r"broken\udcff\udcfe.png" in refused(images, "--model", model, *FINETUNE)
    result = learn(images, "--model", model, "data.skip_unreadable=true", *FINETUNE)
    assert r"left out (1): 'bee/broken\udcff\udcfe.png'" in result.stderr
    picture("ant", 99).save(images / "ant" / "plain.png")
    # CSV keeps the bytes of a name; JSON gives them as Python has them; people see escapes.
    lines = call("predict", model, images, "--csv").stdout_bytes.splitlines()
    assert len(lines) == 1 + 14
    named = os.fsencode(images / "bee" / f"{ODD}000.png")
    assert sum(line.startswith(named + b",") for line in lines) == 1
    assert any(b",cannot read image" in line and b"broken\xff\xfe.png" in line for line in lines)
    rows = [
        json.loads(line) for line in call("predict", model, images, "--json").stdout.splitlines()
    ]
    assert os.fsencode(images / "bee" / f"{ODD}000.png") in [
        os.fsencode(row["image"]) for row in rows
    ]
    assert sum("error" in row for row in rows) == 1
    shown = call("predict", model, images).stdout_bytes.decode("utf-8")
    assert shown.count(r"bee/\udcff\udcfe0") == 6
