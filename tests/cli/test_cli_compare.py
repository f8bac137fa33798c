"""What ``grace compare`` takes, shows and refuses."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from grace.cli.comparison_progress import ComparisonProgress, print_comparison
from grace.settings.registry import METHODS
from grace.studies import comparison
from grace.studies.cells import Cell, cells_of
from grace.studies.comparison import Comparison
from support import commands
from support.synthetic_records import MakeRecord

Calls = list[dict[str, Any]]


call = partial(commands.call, "compare")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, make_record: MakeRecord) -> Calls:
    """Put a comparison that trains nothing in place of the real one."""
    made: Calls = []

    def compare(cells: Any, directory: Path, watcher: Any, **options: Any) -> Comparison:
        made.append({"cells": [cell.name for cell in cells], "out": directory, **options})
        return Comparison((make_record("der", 1),), {}, (directory / "report.html",))

    monkeypatch.setattr(comparison, "compare", compare)
    return made


def test_by_default_all_methods_with_three_seeds(calls: Calls) -> None:
    result = call()
    assert result.exit_code == 0, result.output
    (made,) = calls
    assert len(made["cells"]) == 3 * len(METHODS)
    assert made["out"] == Path("comparisons/digits")
    assert (made["at_once"], made["shares_first_task"]) == (None, True)


def test_what_is_asked_for(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["compare", "digits", "memory.size=50", "--methods", "der, wa", "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", ["/some/where/grace", *arguments])
    result = call(*arguments[1:], "--jobs", "3", "--out", "there", "--no-share")
    assert result.exit_code == 0, result.output
    (made,) = calls
    assert made["cells"] == ["der-s2", "wa-s2"]
    assert made["out"] == Path("there")
    assert (made["at_once"], made["shares_first_task"]) == (3, False)
    assert made["command"] == "grace compare digits memory.size=50 --methods 'der, wa' --seeds 2"


def test_seeds_are_numbers_and_ranges(calls: Calls) -> None:
    assert call("--methods", "der", "--seeds", "2, 5-6,0").exit_code == 0
    assert calls[0]["cells"] == ["der-s2", "der-s5", "der-s6", "der-s0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "one"], "error: --seeds 'one': write seeds as 1,2,3 or 1-3"),
        (["--seeds", "3-1"], "error: --seeds '3-1': 3-1 is not a range of at most 1000 seeds"),
        (["--seeds", "1-100000"], "error: --seeds '1-100000': 1-100000 is not a range of at most"),
        (["--methods", ","], "error: a method's name is empty: name methods as grace,der"),
        (["--methods", "derr"], "error: no method 'derr'; did you mean 'der'?"),
        (["method=der"], "error: 'method=der' would give all runs one method: use --methods"),
        (["digits", "cifar10"], "error: 'cifar10' is no setting: after the experiment 'digits'"),
        (["digit"], "error: no packaged experiment 'digit'"),
        (["memory.sise=3"], "error: "),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    calls: Calls, arguments: list[str], message: str
) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith(message)
    assert result.stderr.count("\n") == 1
    assert calls == []


def test_failures_are_told_and_end_with_1(
    monkeypatch: pytest.MonkeyPatch, make_record: MakeRecord
) -> None:
    failed = Comparison((), {"der-s1": "error: no room"}, ())
    monkeypatch.setattr(comparison, "compare", lambda *_, **__: failed)
    result = call("--methods", "der", "--seeds", "1")
    assert result.exit_code == 1
    assert "der-s1 failed: error: no room" in result.stdout


def test_a_request_to_end_counts_as_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(*_: Any, **__: Any) -> Comparison:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(comparison, "compare", compare)
    result = call("--methods", "der")
    assert result.exit_code == 130
    assert "the same command continues them" in result.stderr
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_line_for_every_run_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 30))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    out = Console(file=io.StringIO(), width=100)
    der, wa = cells_of("digits", [], ["der", "wa"], [1])
    with ComparisonProgress([der.name, wa.name], out) as progress:
        progress.planned(2, 1)
        progress.cell_started(der)
        progress.cell_progressed(der, 3)
        progress.cell_ended(der, None)
        progress.cell_started(wa)
        progress.cell_ended(wa, "error: no room")
    text: Callable[[], str] = out.file.getvalue  # type: ignore[attr-defined]
    # Made at 0, begun at 30, ended at 60; 90 seconds for one run of two.
    assert text().split("\n")[:3] == [
        "2 runs, 1 at a time",
        "    1/2  der-s1  done in 0:00:30, about 0:01:30 left",
        "    2/2  wa-s1   failed: error: no room",
    ]


def test_what_was_finished_before_is_counted() -> None:
    out = Console(file=io.StringIO(), width=100)
    cells: list[Cell] = cells_of("digits", [], ["der", "wa"], [1, 2])
    with ComparisonProgress([cell.name for cell in cells], out) as progress:
        progress.planned(1, 2)
    text: str = out.file.getvalue()  # type: ignore[attr-defined]
    assert text == "4 runs, 3 finished before, 1 to do, 2 at a time\n"


def test_the_table_at_the_end(make_record: MakeRecord, tmp_path: Path) -> None:
    records = tuple(make_record(method, seed) for method in ("replay", "der") for seed in (1, 2))
    out = Console(file=io.StringIO(), width=200)
    files = (tmp_path / "report.html", tmp_path / "table.csv")
    print_comparison(Comparison(records, {}, files), out)
    lines = out.file.getvalue().split("\n")  # type: ignore[attr-defined]
    assert lines[0].split()[:4] == ["method", "runs", "Last", "(%)"]
    mean = sum(record.last or 0 for record in records[2:]) / 2
    assert lines[1].split()[:3] == ["der", "2", f"{mean:.2f}"]
    assert lines[2].split()[0] == "replay"
    assert lines[4].split() == ["report", str(files[0])]
    assert not any("table.csv" in line for line in lines)


def test_a_run_ends_when_its_input_does() -> None:
    command = [sys.executable, "-m", "grace", "run", "--with-parent", "--no-report"]
    done = subprocess.run(command, input=b"", capture_output=True, timeout=60)
    assert done.returncode == 130
