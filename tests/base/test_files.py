"""What may stand in a file's place."""

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from grace.base.errors import DamagedError
from grace.base.files import read_exactly, read_head, read_small

READ = {
    "small": read_small,
    "given": partial(read_small, given=True),
    "exactly": read_exactly,
    "start": partial(read_exactly, first=2),
    "head": read_head,
}
OF_PEOPLE = ("given", "head")


@pytest.mark.parametrize(("name", "read"), READ.items())
def test_regular_files_are_read(
    tmp_path: Path, name: str, read: Callable[[Path, str, int], bytes]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    expected = b"12" if name == "start" else b"1234"
    assert read(path, "it", 4) == expected
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    assert read(tmp_path / "link" / "file", "it", 4) == expected
    path.write_bytes(b"")
    assert read(path, "it", 0) == b""


def test_sizes_are_compared_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole: to read it would not fit in memory
    for name, says in (
        ("small", f"it is damaged: it has {2**40} bytes, where at most 3 are expected"),
        ("given", f"it is too large: it has {2**40} bytes, where at most 3 are expected"),
        ("exactly", f"it is damaged: it has {2**40} bytes instead of 3"),
        ("start", f"it is damaged: it has {2**40} bytes instead of 3"),
    ):
        with pytest.raises(DamagedError, match=f"^{says}$"):
            READ[name](path, "it", 3)
    assert read_head(path, "it", 3) == bytes(3)
    path.write_bytes(b"12")
    with pytest.raises(DamagedError, match="has 2 bytes instead of 3"):
        read_exactly(path, "it", 3)


@pytest.mark.parametrize(("name", "read"), READ.items())
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("absent", "it is missing"),
        ("below a file", "it is missing"),
        ("link", "it is damaged: it is a link, and links are not followed"),
        ("broken link", "it is damaged: it is a link, and links are not followed"),
        ("folder", "it is damaged: it is no regular file"),
        ("pipe", "it is damaged: it is no regular file"),
        ("socket", "it is damaged: it is no regular file"),
        ("device", "it is damaged: it is no regular file"),
    ],
)
def test_other_kinds_are_refused(
    tmp_path: Path, kind: str, says: str, name: str, read: Callable[[Path, str, int], bytes]
) -> None:
    path = tmp_path / "file"
    (tmp_path / "real").write_bytes(b"1234")
    match kind:
        case "below a file":
            path = tmp_path / "real" / "file"
        case "link":
            path.symlink_to(tmp_path / "real")
        case "broken link":
            path.symlink_to(tmp_path / "nowhere")
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)
        case "socket":
            # The path of a socket may be no longer than 107 bytes.
            with socket.socket(socket.AF_UNIX) as server, pytest.MonkeyPatch.context() as patch:
                patch.chdir(tmp_path)
                server.bind("file")
        case "device":
            path = Path("/dev/zero")
    if name not in OF_PEOPLE or "no regular file" in says:
        with pytest.raises(DamagedError, match=f"^{says}$"):
            read(path, "it", 4)
    elif kind == "link":
        assert read(path, "it", 4) == b"1234"
    else:  # A person named it wrongly.
        with pytest.raises(OSError, match="file"):
            read(path, "it", 4)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_file_exchanged_between_look_and_opening_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path, real = tmp_path / "file", tmp_path / "real"
    path.write_bytes(b"1234")
    real.write_bytes(b"1234")
    opened = os.open

    def exchanging(name: Path, flags: int) -> int:
        path.unlink()
        path.symlink_to(real) if kind == "link" else os.mkfifo(path)
        return opened(name, flags)

    monkeypatch.setattr("os.open", exchanging)
    with pytest.raises(DamagedError if kind == "pipe" else OSError, match=r"regular|levels"):
        read_small(path, "it", 4)


@pytest.mark.parametrize("change", [b"12", b"123456"])
def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: bytes
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    fstat = os.fstat

    def changing(handle: int) -> os.stat_result:
        status = fstat(handle)
        path.write_bytes(change)
        return status

    monkeypatch.setattr("os.fstat", changing)
    with pytest.raises(DamagedError, match="its size changed"):
        read_exactly(path, "it", 4)
