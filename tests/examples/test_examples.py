"""The examples run as their users run them."""

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest

from support.tiny_streams import tiny_backbones as tiny_backbones

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("tiny_backbones")

Run = Callable[..., str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a script as ``python SCRIPT ARGUMENTS`` does; give what it printed."""

    def run(script: str, *arguments: str) -> str:
        monkeypatch.setattr("sys.argv", [script, *arguments])
        runpy.run_path(str(ROOT / "examples" / script), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_two_methods_are_compared(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "comparison"
    few = "data.max_train_per_class=20"
    words = ["finetune", "replay", few, "--epochs", "1", "--out", str(out)]
    shown = run("compare_methods.py", *words)
    rows = [line.split(" | ")[:3] for line in shown.splitlines() if line.startswith("| digits")]
    assert rows == [["| digits", "replay", "1"], ["| digits", "finetune", "1"]]
    assert (out / "replay" / "tasks.jsonl").read_text().count("\n") == 5
    assert (out / "report.html").read_text().startswith("<!doctype html>")


def test_a_learner_is_updated_from_arrays(run: Run) -> None:
    # A threshold of 0 always expands: nothing is distilled from a teacher of one epoch.
    shown = run("learn_from_arrays.py", "--epochs", "1", "method.threshold=0")
    assert "update 1: start, 1 backbone(s)" in shown
    assert "update 2: grow, 2 backbone(s)" in shown
    assert "'5-9': '0.0%'" in shown.splitlines()[1]
    assert shown.count("digit ") == 10
