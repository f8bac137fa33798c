"""``grace export``, called as people call it."""

import re
from pathlib import Path

import onnx
import pytest

from support.commands import call
from support.quick_exports import operators_once as operators_once
from support.saved_learners import copied as copied
from support.saved_learners import saved as saved
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def version_of(path: Path) -> str:
    return {own.key: own.value for own in onnx.load(path).metadata_props}["model_version"]


def test_a_model_is_exported_beside_itself_and_not_written_over(copied: Path) -> None:
    path = copied.parent / "pets.onnx"
    path.write_bytes(b"mine")
    again = call("export", copied)
    assert (again.exit_code, again.stdout) == (2, "")
    assert again.stderr == (
        f"error: '{path}' exists already: choose another --out, or use --force\n"
    )
    assert path.read_bytes() == b"mine"
    result = call("export", copied, "--force")
    assert (result.exit_code, result.stderr) == (0, "")
    first, second, names = result.stdout.splitlines()
    labels = path.with_name("pets.labels.txt")
    assert names == f"class names: {labels}; outputs: logits, probabilities, familiarity"
    assert labels.read_text().splitlines() == ["apple", "Käse", "cat", "dog", "fox"]
    assert first == f"{path}: {path.stat().st_size / 1000:.0f} kB, version 5"
    assert re.fullmatch(
        r"checked on 12 held-out images: the same classes, logits within \d(e-\d\d)?", second
    )
    assert version_of(path) == "5"


def test_an_earlier_version_is_exported(copied: Path, tmp_path: Path) -> None:
    path = tmp_path / "first.onnx"
    result = call("export", copied, "--version", "1", "--out", path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert version_of(path) == "1"
    assert path.with_name("first.labels.txt").read_text().splitlines() == ["apple", "Käse"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--out", "no/such/folder/pets.onnx"], "there is no folder 'no/such/folder'"),
        (["--version", "9"], "has no version 9"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    arguments: list[str],
    says: str,
    copied: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call("export", copied, *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert says in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["pets"]


def test_the_file_is_named_after_the_model(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copied / "below").mkdir()
    for place, model in ((copied, "."), (copied / "below", ".."), (copied.parent, "pets/")):
        monkeypatch.chdir(place)
        copied.with_name("pets.onnx").write_bytes(b"mine")
        assert "pets.onnx' exists already" in call("export", model).stderr
