"""Writes that fail, are killed, or meet something planted."""

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from grace.base.atomic import (
    remove,
    remove_leftovers,
    sync_folder,
    unfinished,
    write_bytes,
    write_text,
)

START = """
import os, resource, signal, sys
from pathlib import Path
from grace.base.atomic import write_bytes
"""


def written_by_another(path: Path, script: str) -> int:
    """Write into a file that exists in another process; return how it ended."""
    path.write_bytes(b"old")
    return subprocess.run([sys.executable, "-c", START + script, str(path)]).returncode


def test_what_is_written_replaces_the_old(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_bytes(path, b"old and long")
    write_bytes(path, b"\x00\r\n\xff")
    assert path.read_bytes() == b"\x00\r\n\xff"
    write_text(path, "Größe\n\r\n")
    assert path.read_bytes() == b"Gr\xc3\xb6\xc3\x9fe\n\r\n"
    assert list(tmp_path.iterdir()) == [path]
    before = os.umask(0o027)
    try:
        write_bytes(path, b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    for _ in range(2):
        remove(path)
        assert list(tmp_path.iterdir()) == []
    sync_folder(tmp_path / "absent")


@pytest.mark.parametrize("step", ["os.fsync", "os.replace"])
@pytest.mark.parametrize("existed", [True, False])
def test_a_failed_write_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, existed: bool
) -> None:
    path = tmp_path / "file"
    if existed:
        write_bytes(path, b"old")

    def no_room(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(step, no_room)
    with pytest.raises(OSError, match="No space left") as caught:
        write_bytes(path, b"new")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(path))
    assert [(file, file.read_bytes()) for file in tmp_path.iterdir()] == [(path, b"old")] * existed


def test_a_write_killed_before_the_rename_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    script = (
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_bytes(Path(sys.argv[1]), b'new')\n"
    )
    assert written_by_another(path, script) == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    (left,) = set(tmp_path.iterdir()) - {path}
    assert left.name.startswith(".grace-unfinished-")
    assert left.read_bytes() == b"new"
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_is_on_disk_before_it_is_renamed_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(handle: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def noted_replace(source: Path, target: Path) -> None:
        assert source.read_bytes() == b"new"
        done.append("rename")
        replace(source, target)

    monkeypatch.setattr("os.fsync", noted_fsync)
    monkeypatch.setattr("os.replace", noted_replace)
    write_bytes(tmp_path / "file", b"new")
    assert done == ["file", "rename", "folder"]
    remove(tmp_path / "file")
    assert done[3:] == ["folder"]
    unfinished(tmp_path / "file").touch()
    remove_leftovers(tmp_path)
    assert done[4:] == ["folder"]


def test_planted_links_are_not_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim, folder = tmp_path / "victim", tmp_path / "folder"
    victim.write_bytes(b"precious")
    folder.mkdir()
    (folder / f".grace-unfinished-{'0' * 32}").symlink_to(victim)
    monkeypatch.setattr("secrets.token_hex", lambda _: "0" * 32)
    with pytest.raises(FileExistsError):
        write_bytes(folder / "file", b"new")
    monkeypatch.undo()
    (folder / "file").symlink_to(victim)
    write_bytes(folder / "file", b"new")
    assert victim.read_bytes() == b"precious"
    assert not (folder / "file").is_symlink()
    assert (folder / "file").read_bytes() == b"new"


def test_only_leftovers_are_removed(tmp_path: Path) -> None:
    unfinished(tmp_path / "a").touch()
    unfinished(tmp_path / "folder").mkdir()
    others = {
        ".notes.12.tmp", ".grace-unfinished-12", f".grace-unfinished-{'g' * 32}",
        f"grace-unfinished-{'0' * 32}", f".grace-unfinished-{'0' * 32}~",
    }  # fmt: skip
    for name in others:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == others
    assert sum(path.is_dir() for path in tmp_path.iterdir()) == 1
