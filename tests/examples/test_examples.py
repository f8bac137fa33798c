"""The examples run as their users run them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_methods_are_compared(tmp_path: Path) -> None:
    out = tmp_path / "comparison"
    few = "data.max_train_per_class=20"
    words = ["finetune", "replay", few, "--epochs", "1", "--out", str(out)]
    shown = run("compare_methods.py", *words)
    rows = [line.split(" | ")[:3] for line in shown.splitlines() if line.startswith("| digits")]
    assert rows == [["| digits", "replay", "1"], ["| digits", "finetune", "1"]]
    assert (out / "replay" / "tasks.jsonl").read_text().count("\n") == 5
    assert (out / "report.html").read_text().startswith("<!doctype html>")


def test_a_learner_is_updated_from_arrays() -> None:
    # A threshold of 0 always expands: nothing is distilled from a teacher of one epoch.
    shown = run("learn_from_arrays.py", "--epochs", "1", "method.threshold=0")
    assert "update 1: start, 1 backbone(s)" in shown
    assert "update 2: grow, 2 backbone(s)" in shown
    assert "'5-9': '0.0%'" in shown.splitlines()[1]
    assert shown.count("digit ") == 10
