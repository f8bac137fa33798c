"""One at a time, across processes and within one."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grace.base import lock
from grace.base.errors import BusyError, DamagedError
from grace.base.lock import exclusive

HOLDER = """
import os, sys
from pathlib import Path
from grace.base.lock import exclusive
with exclusive(Path(sys.argv[1]), "the model"):
    print("held", flush=True)
    if sys.argv[2:] and os.fork() == 0:
        sys.stdin.read()  # A child that lives on.
        os._exit(0)
    if not sys.argv[2:]:
        sys.stdin.read()
print("released", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(path: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its standard input ends."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLDER, str(path), *more]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def assert_free(path: Path) -> None:
    assert lock.holder(path) is None
    with exclusive(path, "it"):
        assert path.read_text() == f"{os.getpid()}\n"
        assert lock.holder(path) == str(os.getpid())


def test_a_second_process_is_told_who_holds_it_until_that_one_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as other:
        says = rf"^the model is being changed by another process \(pid {other.pid}\): wait for it"
        with pytest.raises(BusyError, match=says), exclusive(path, "the model"):
            pytest.fail("entered")
        assert lock.holder(path) == str(other.pid)
        other.kill()
        other.wait()
        assert_free(path)


def test_a_child_that_lives_on_does_not_keep_it(tmp_path: Path) -> None:
    with holder(tmp_path / "lock", "with a child") as process:
        assert process.stdout.readline() == "released\n"
        assert_free(tmp_path / "lock")
        assert process.poll() is None


def test_a_second_use_in_one_process_is_refused_until_an_error_ends_the_first(
    tmp_path: Path,
) -> None:
    path = tmp_path / "lock"

    def use() -> None:
        with exclusive(path, "it"):
            for _ in range(2):  # a refusal must not release what it did not get
                with pytest.raises(BusyError, match=rf"pid {os.getpid()}"), exclusive(path, "it"):
                    pytest.fail("entered")
            raise KeyError

    with pytest.raises(KeyError):
        use()
    with exclusive(path, "it"), exclusive(tmp_path / "other", "the other"):
        pass


def test_other_content_names_nobody(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    for content in (b"", b"12", b"\xff\n", b"9" * 50, b"12\n34\n"):
        with exclusive(path, "it"):
            path.write_bytes(content)
            with pytest.raises(BusyError, match="pid unknown"), exclusive(path, "it"):
                pytest.fail("entered")
        assert_free(path)


@pytest.mark.parametrize("kind", ["link", "broken link", "pipe", "folder"])
def test_other_kinds_are_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    path, victim = tmp_path / "lock", tmp_path / "victim"
    if kind == "link":
        victim.write_bytes(b"precious")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(victim)
    with pytest.raises(DamagedError, match="its lock 'lock' is"), exclusive(path, "it"):
        pytest.fail("entered")
    assert lock.holder(path) is None
    assert [file.read_bytes() for file in tmp_path.glob("victim")] == [b"precious"] * (
        kind == "link"
    )


def test_a_file_of_two_names_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    (tmp_path / "diary").write_bytes(b"precious")
    path.hardlink_to(tmp_path / "diary")
    with exclusive(path, "it"):
        assert path.read_bytes() == b"precious"


@pytest.mark.parametrize("asks", [True, False])
def test_a_lock_that_its_holder_deletes_meanwhile_is_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: bool
) -> None:
    path, opened = tmp_path / "lock", os.open

    def meanwhile(name: Path, flags: int, mode: int = 0o777) -> int:
        if asks:
            path.unlink()
            return opened(name, flags)
        handle = opened(name, flags, mode)
        path.unlink()  # After it was opened: what is locked then is no lock of anybody.
        monkeypatch.undo()
        return handle

    path.touch()
    monkeypatch.setattr("grace.base.lock.os.open", meanwhile)
    if asks:
        assert lock.holder(path) is None
    else:
        with exclusive(path, "it"):
            assert path.read_text() == f"{os.getpid()}\n"
