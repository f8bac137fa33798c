"""What the command does where torchrun starts it several times; its work: tests/engine."""

import subprocess
import sys
from pathlib import Path

import pytest

import grace
from support.commands import call


@pytest.fixture(params=[0, 1])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Be one of two processes; give what errors say of it."""
    for name, value in (("WORLD_SIZE", 2), ("RANK", request.param), ("LOCAL_RANK", request.param)):
        monkeypatch.setenv(name, str(value))
    return " (process 1)" if request.param else ""


@pytest.mark.parametrize("words", [["learn", "--model", "pets", "images"], ["predict", "pets"]])
def test_other_verbs_refuse_in_one_line(place: str, words: list[str]) -> None:
    result = call(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == (
        f"error{place}: grace {words[0]} works in one process: start it without torchrun, which is "
        "for grace run\n"
    )


def test_an_error_says_whose_it_is(place: str) -> None:
    result = call("run", "digits", "seed=one")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error{place}: ")
    assert result.stderr.count("\n") == 1


def test_an_existing_directory_is_the_first_ones_to_refuse(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one may have made it a moment ago."""
    called = []
    monkeypatch.setattr(
        "grace.cli.run.run_experiment", lambda settings, **given: called.append((settings, given))
    )
    result = call("run", "digits", "--out", tmp_path)
    if place:
        [(settings, given)] = called
        assert (settings.name, given) == ("digits", {"directory": tmp_path, "resume": False})
        assert result.output == ""
    else:
        assert called == []
        assert "exists already: choose another --out" in result.stderr


def test_the_package_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "grace", "--version"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, f"grace {grace.__version__}\n")
