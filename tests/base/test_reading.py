"""What may stand in a file's place."""

import os
import socket
from pathlib import Path

import pytest

from grace.base.errors import DamagedError
from grace.base.files import read_exactly, read_small


def test_regular_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    assert read_small(path, "it", 4) == b"1234"
    assert read_exactly(path, "it", 4) == b"1234"
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    assert read_small(tmp_path / "link" / "file", "it", 4) == b"1234"
    path.write_bytes(b"")
    assert read_small(path, "it", 0) == read_exactly(path, "it", 0) == b""


def test_sizes_are_compared_before_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    with path.open("wb") as file:
        file.truncate(2**40)  # a hole: to read it would not fit in memory
    with pytest.raises(DamagedError, match="1099511627776 bytes, where at most"):
        read_small(path, "it", 2**20)
    with pytest.raises(DamagedError, match="1099511627776 bytes instead of 3"):
        read_exactly(path, "it", 3)
    path.write_bytes(b"12")
    with pytest.raises(DamagedError, match="has 2 bytes instead of 3"):
        read_exactly(path, "it", 3)


@pytest.mark.parametrize("read", [read_small, read_exactly])
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("absent", "^it is missing$"),
        ("below a file", "^it is missing$"),
        ("link", "^it is damaged: it is a link"),
        ("broken link", "^it is damaged: it is a link"),
        ("loop", "^it is damaged: it is a link"),
        ("folder", "^it is damaged: it is no regular file$"),
        ("pipe", "^it is damaged: it is no regular file$"),
        ("socket", "^it is damaged: it is no regular file$"),
        ("device", "^it is damaged: it is (a link|no regular file)"),
    ],
)
def test_other_kinds_are_refused(tmp_path: Path, kind: str, says: str, read: object) -> None:
    path = tmp_path / "file"
    (tmp_path / "real").write_bytes(b"1234")
    match kind:
        case "below a file":
            path = tmp_path / "real" / "file"
        case "link":
            path.symlink_to(tmp_path / "real")
        case "broken link":
            path.symlink_to(tmp_path / "nowhere")
        case "loop":
            path.symlink_to(path)
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
    assert read in (read_small, read_exactly)
    with pytest.raises(DamagedError, match=says):
        (read_small if read is read_small else read_exactly)(path, "it", 4)


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
