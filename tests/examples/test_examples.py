"""The examples run as their users run them."""

import http.client
import io
import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from grace.learner.learner import Learner
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


def asked(address: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """Post a picture; return the status and the answer."""
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=60)
    connection.request("POST", "/", body)
    answer = connection.getresponse()
    return answer.status, json.load(answer)


def test_an_exported_model_answers_over_http(tmp_path: Path) -> None:
    draws = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (8, 3, 32, 32), generator=draws).to(torch.uint8)
    once = ["method.base.epochs=1", "method.base.milestones=[]", "backbone.name=resnet20"]
    learner = Learner.create("folder", ["memory.size=4", *once], shape=(3, 32, 32))
    learner.update(images, ["cat", "dog"] * 4)
    learner.export(tmp_path / "pets.onnx")
    script = str(ROOT / "examples" / "serve_with_onnx.py")
    command = [sys.executable, script, str(tmp_path / "pets.onnx"), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            address = server.stdout.readline().split()[-1]
            picture = io.BytesIO()
            Image.fromarray(images[0].permute(1, 2, 0).numpy()).save(picture, "png")
            status, found = asked(address, picture.getvalue())
            assert status == 200
            assert found["class"] == learner.predict(images[:1])[0]
            expected = float(learner.predict_proba(images[:1]).max())
            assert found["probability"] == pytest.approx(expected, abs=1e-4)
            assert "unknown" not in found
            status, found = asked(address, b"no picture")
            assert status == 400
            assert found["error"] == "what was sent: no picture"
        finally:
            server.terminate()


def test_an_exported_model_names_pictures_beside_others(tmp_path: Path) -> None:
    script = str(ROOT / "examples" / "predict_with_onnx.py")
    missing = subprocess.run(
        [sys.executable, script, "nix.onnx", "photo.png"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (missing.returncode, missing.stderr) == (1, "nix.onnx does not exist\n")
