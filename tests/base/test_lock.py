"""One at a time, across processes and within one."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from grace.base import lock
from grace.base.errors import BusyError, DamagedError
from grace.base.lock import exclusive, shared

HOLDER = """
import sys
import threading
from pathlib import Path
from grace.base.lock import exclusive
with exclusive(Path(sys.argv[1]), "the model"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its standard input ends."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def test_a_second_process_is_told_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as other:
        says = rf"^the model is being changed by another process \(pid {other.pid}\): wait for it"
        with pytest.raises(BusyError, match=says), exclusive(path, "the model"):
            pytest.fail("entered")
        other.communicate("")
        assert other.returncode == 0
    with exclusive(path, "the model"):
        assert path.read_text() == f"{os.getpid()}\n"


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as other:
        other.send_signal(signal.SIGKILL)
        assert other.wait() == -signal.SIGKILL
        with exclusive(path, "the model"):
            assert path.read_text() == f"{os.getpid()}\n"


def test_a_second_use_in_one_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with exclusive(path, "it"):
        for _ in range(2):  # a refusal must not release what it did not get
            with pytest.raises(BusyError, match=rf"pid {os.getpid()}"), exclusive(path, "it"):
                pytest.fail("entered")
    with exclusive(path, "it"), exclusive(tmp_path / "other", "the other"):
        pass


def test_an_error_inside_releases(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(KeyError), exclusive(path, "it"):
        raise KeyError
    with exclusive(path, "it"):
        pass


def test_a_child_that_lives_on_does_not_keep_it(tmp_path: Path) -> None:
    script = (
        "import os, sys\nfrom pathlib import Path\n"
        "from grace.base.lock import exclusive\n"
        "with exclusive(Path(sys.argv[1]), 'it'):\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        sys.stdin.read()\n"
        "        os._exit(0)\n"
        "print('released', flush=True)\n"
        "os.waitpid(child, 0)\n"
    )
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", script, str(tmp_path / "lock")]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "released\n"
        with exclusive(tmp_path / "lock", "it"):
            assert process.poll() is None


@pytest.mark.parametrize("content", [b"", b"12", b"\xff\n", b"9" * 50, b"12\n34\n"])
def test_other_content_names_nobody(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "lock"
    with exclusive(path, "it"):
        path.write_bytes(content)
        with pytest.raises(BusyError, match="pid unknown"), exclusive(path, "it"):
            pytest.fail("entered")
    path.write_bytes(content)
    with exclusive(path, "it"):
        assert path.read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("kind", ["link", "broken link", "pipe", "folder"])
def test_other_kinds_are_refused_and_left_alone(tmp_path: Path, kind: str) -> None:
    path, victim = tmp_path / "lock", tmp_path / "victim"
    if kind == "link":
        victim.write_bytes(b"precious")
        path.symlink_to(victim)
    elif kind == "broken link":
        path.symlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(DamagedError, match="its lock 'lock' is"), exclusive(path, "it"):
        pytest.fail("entered")
    assert victim.exists() == (kind == "link")
    assert kind != "link" or victim.read_bytes() == b"precious"


def test_a_lock_that_is_deleted_meanwhile_has_no_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened = tmp_path / "lock", os.open

    def late(name: Path, flags: int) -> int:
        path.unlink()
        return opened(name, flags)

    path.touch()
    monkeypatch.setattr("grace.base.lock.os.open", late)
    assert lock.holder(path) is None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows shares no lock")
def test_many_may_share_a_lock_but_not_with_one_who_has_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"

    def held_alone() -> None:
        with exclusive(path, "the studies"):
            pass

    def held_too() -> None:
        with shared(path, "the studies"):
            pass

    held_alone()  # Its pid, which stays in the file, is no longer the holder's.
    with shared(path, "the studies"):
        held_too()
        with pytest.raises(BusyError, match="pid unknown"):
            held_alone()
    with holder(path) as process, pytest.raises(BusyError, match=str(process.pid)):
        held_too()
    held_too()
    held_alone()
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedError, match="is a link"):
        held_too()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows shares no lock")
def test_one_who_waits_shares_a_lock_after_the_end_of_who_has_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with holder(path) as process:
        # It ends while this process waits, whose first tries find it.
        threading.Timer(0.3, process.kill).start()
        with shared(path, "the studies", 60):
            assert process.wait(60) is not None
