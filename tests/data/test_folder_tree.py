"""Names of classes and of files: which are allowed, which are one, and what a folder holds."""

from pathlib import Path
from unicodedata import normalize

import pytest

from grace.base.errors import GraceError
from grace.data.folder_tree import class_name, given_files, spelling, twins

ALLOWED = (
    "cat", "Käfer", "猫", "a b", "x" * 255, "می\u200cخواهم", "क्\u200dष", "東京\u3000駅",
    "café\u00a0noir", "👩\u200d🚀",
    # 85 syllables of three letters each: 765 bytes apart, 255 bytes composed.
    "\ud55c" * 85,
)  # fmt: skip
HIDING = ("a\u200db", "\u202eabc", "ab\u2066", "\u200c", "\u3000", "a\ud800", "\x1b[2J", "a\nb")


def test_names() -> None:
    for name in ALLOWED:
        assert class_name(name) == class_name(normalize("NFD", name)) == name
    for name in ("", " ", "x" * 256, "é" * 128, *HIDING):
        with pytest.raises(GraceError, match="the class name"):
            class_name(name)
    assert spelling("Cafe\u0301") == spelling("CAFÉ") == "café"
    assert spelling("STRASSE") == spelling("straße")
    assert twins(["é\u200d", "é", "a b", "a\u00a0b"]) == [("é\u200d", "é"), ("a b", "a\u00a0b")]


def test_a_name_of_megabytes_is_refused_before_it_is_composed() -> None:
    # Composing marks takes time that grows with the square of their number: hours for this name.
    with pytest.raises(ValueError, match="2000000 bytes, more than 255") as caught:
        class_name("\u0301\u0316" * 500_000)
    assert len(str(caught.value)) < 400


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "folder" / "b").mkdir(parents=True)
    for name in ("folder/z.png", "folder/a.jpg", "folder/b/c.TIFF", "folder/notes.txt", "own.tif"):
        (tmp_path / name).touch()
    return tmp_path


def test_order_is_that_of_the_names_and_of_each_folder(place: Path) -> None:
    found = given_files([place / "own.tif", place / "folder"])
    names = [path.relative_to(place).as_posix() for path in found[0]]
    assert names == ["own.tif", "folder/a.jpg", "folder/z.png", "folder/b/c.TIFF"]
    assert found[1] == []
    again = given_files([place / "folder" / "z.png", place / "own.tif", place / "own.tif"])
    assert [path.name for path in again[0]] == ["z.png", "own.tif", "own.tif"]


def test_what_a_folder_keeps_back_is_noted(place: Path) -> None:
    (place / "folder" / "link").symlink_to(place)
    (place / "folder" / "photo.avif").touch()
    link, frames = given_files([place / "folder"])[1]
    assert link.startswith("1 left out (a link to a folder), such as '")
    assert frames.startswith("1 left out (AVIF or HEIC: convert it to PNG or JPEG), such as '")
    (place / "frames").mkdir()
    (place / "frames" / "photo.avif").touch()
    with pytest.raises(GraceError, match=r"holds no images .* only '.*photo\.avif' \(AVIF or"):
        given_files([place / "frames"])


def test_what_is_not_there_is_taken_for_a_file(place: Path) -> None:
    assert given_files([place / "absent"])[0] == [place / "absent"]


def test_a_folder_without_images_is_refused(place: Path) -> None:
    (place / "bare").mkdir()
    with pytest.raises(ValueError, match="bare' holds no images"):
        given_files([place / "bare"])
