"""A whole comparison, in processes of its own, and what it leaves."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import grace
from grace.base.errors import GraceError
from grace.runs.run import run as run_experiment
from grace.settings.load import load_experiment
from grace.studies.study import compare
from support.runs_here import Started, workers

QUICK = [
    "data.max_train_per_class=8",
    "data.max_test_per_class=5",
    "scenario.increment=5",
    "memory.size=20",
    *(f"methods.{method}.{phase}.epochs=1" for method in ("replay", "wa") for phase in
      ("base", "update")),
]  # fmt: skip


def test_every_cell_is_the_run_that_it_would_be_alone(tmp_path: Path) -> None:
    """A process is killed while it makes a run; another one takes that, and makes the others."""
    out, notes = tmp_path / "there", Started()
    chosen = ["--methods=wa,replay", "--seeds=4", "--jobs=1", f"--out={out}"]
    killed = subprocess.Popen([sys.executable, "-m", "grace", "compare", "digits", *QUICK, *chosen])
    until = time.monotonic() + 120
    while not list(out.glob("runs/*/run.json")) and time.monotonic() < until:
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    result = grace.compare(
        "digits", QUICK, methods=["wa", "replay"], seeds=[4], directory=out, watcher=notes
    )
    assert result.failures == {}
    assert sorted(notes.names) == ["replay digits s4", "wa digits s4"]
    assert {path.name for path in out.iterdir()} == {
        *("runs", "cells", "logs", "first-tasks", "figures"),
        *("table.csv", "table.tex", "report.html"),
    }
    first, second = (record.tasks[0].phases[0] for record in result.records)
    assert first.is_shared != second.is_shared  # One of them trained the first task of both.
    [replay] = (record for record in result.records if record.method == "replay")
    settings = load_experiment("digits", [*QUICK, "method=replay", "seed=4"])
    alone = run_experiment(settings, directory=tmp_path / "alone")
    assert [t.classifiers for t in replay.tasks] == [t.classifiers for t in alone.tasks]
    assert [t.confusion for t in replay.tasks] == [None] * 2  # Not held in memory.
    again = compare(
        "digits",
        QUICK,
        methods=["wa"],
        seeds=[4],
        directory=out,
        workers=workers(lambda job: pytest.fail("made again")),
    )
    assert [record.method for record in again.records] == ["wa"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"methods": [""]}, "comparison: rows"),
        ({"seeds": [1, 1]}, "s1 is given twice"),
        ({"overrides": ["memory.sise=3"]}, "memory.sise"),
        ({"experiment": "own.yaml"}, r"name.*(is a path|of the form)"),
    ],
)
def test_wrong_arguments_create_nothing(
    more: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.yaml").write_text("parent: digits\nname: a/b\n")
    with pytest.raises(GraceError, match=message):
        compare(directory=tmp_path / "out", **more)
    assert list(tmp_path.iterdir()) == [tmp_path / "own.yaml"]
    with pytest.raises(GraceError, match="holds files that are not of a comparison"):
        compare("digits", methods=["der"], seeds=[1], directory=tmp_path)
