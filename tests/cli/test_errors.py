"""Every error of a user is one short line; a bug keeps its traceback."""

import resource
import subprocess
import sys

import pytest
import typer

from grace.base.errors import GraceError
from grace.cli.console import one_line_errors


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (GraceError("x " * 25_000_000, "set a=1"), "error: x x"),
        (OSError("y" * 50_000_000), "error: yyy"),
        (FileNotFoundError(2, "No such file or directory", "a\nb"), "error: a b: no such file"),
        (MemoryError(), "error: there is not enough memory: "),
        (ImportError("libtorch.so: failed to map segment"), "error: there is not enough memory: "),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "error: there is not enough"),
    ],
)
def test_an_error_is_one_short_line(
    error: Exception, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, one_line_errors():
        raise error
    assert ended.value.exit_code == 2
    text = capsys.readouterr().err
    assert text.startswith(shown)
    assert text.count("\n") == 1
    assert len(text) < 12_000


@pytest.mark.parametrize("error", [ValueError("a bug"), RuntimeError("a bug"), ImportError("no x")])
def test_a_bug_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)), one_line_errors():
        raise error


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
@pytest.mark.parametrize("megabytes", [600, 900])
def test_too_little_memory_for_a_library_is_one_line(megabytes: int) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))

    command = [sys.executable, "-m", "grace", "run", "digits"]
    ended = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=False)
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") == 1
