"""Folders are watched: each image is given once, when it is complete."""

import os
from pathlib import Path

from grace.data.given_files import names_in
from grace.data.watching import Watcher


def test_a_file_is_given_once_when_two_looks_agree(tmp_path: Path) -> None:
    (tmp_path / "old.png").write_bytes(b"old")
    watcher = Watcher([tmp_path], [tmp_path / "old.png"])
    assert watcher.look() == []
    image = tmp_path / "below" / "new.png"
    image.parent.mkdir()
    image.write_bytes(b"half")
    (tmp_path / "notes.txt").write_text("no image")
    assert watcher.look() == []
    image.write_bytes(b"half and more")
    assert watcher.look() == []
    assert watcher.look() == [image]
    assert watcher.look() == []
    image.write_bytes(b"another picture")
    assert watcher.look() == []
    assert watcher.look() == [image]


def test_a_folder_may_come_and_go(tmp_path: Path) -> None:
    folder = tmp_path / "later"
    watcher = Watcher([folder])
    assert watcher.look() == []
    folder.mkdir()
    (folder / "a.png").write_bytes(b"a")
    assert watcher.look() == []
    assert watcher.look() == [folder / "a.png"]
    (folder / "a.png").unlink()
    folder.rmdir()
    assert watcher.look() == []


def test_lists_of_names_keep_their_bytes() -> None:
    found = names_in([b"a b.png\n", b"\n", b"c\xff.png\r\n", b"last"])
    assert [os.fsencode(path) for path in found] == [b"a b.png", b"c\xff.png", b"last"]
