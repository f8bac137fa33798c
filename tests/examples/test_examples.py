import http.client
import io
import json
import os
import runpy
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
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
    rows = [line.split(" | ")[:2] for line in shown.splitlines()]
    assert rows[:3] == [["Row", "Runs"], ["finetune", "1"], ["replay", "1"]]
    assert (out / "replay" / "tasks.jsonl").read_text().count("\n") == 5
    assert (out / "report.html").read_text().startswith("<!doctype html>")


def test_a_search_finds_the_best_threshold(run: Run, tmp_path: Path) -> None:
    few = ["data.max_train_per_class=4", "scenario.increment=5"]
    shown = run("search_threshold.py", "--trials", "2", "--out", str(tmp_path), *few)
    assert "threshold" in shown.splitlines()[-1]
    assert len(list(tmp_path.glob("trial-*/run.json"))) == 2


def test_a_learner_is_updated_from_arrays(run: Run) -> None:
    # A threshold of 0 always expands: nothing is distilled from a teacher of one epoch.
    shown = run("learn_from_arrays.py", "--epochs", "1", "method.threshold=0")
    assert "update 1: start, 1 backbone(s)" in shown
    assert "update 2: grow, 2 backbone(s)" in shown
    assert "'5-9': '0.0%'" in shown.splitlines()[1]
    assert shown.count("digit ") == 10


Pets = tuple[Learner, torch.Tensor, Path]


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Pets:
    """Return a learner, its images (8, 3, 32, 32), and its export."""
    draws = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (8, 3, 32, 32), generator=draws).to(torch.uint8)
    once = ["method.base.epochs=1", "method.base.milestones=[]", "backbone.name=resnet20"]
    learner = Learner.create("folder", ["memory.size=4", *once], shape=(3, 32, 32))
    learner.update(images, ["cat", "dog"] * 4)
    path = tmp_path_factory.mktemp("pets") / "pets.onnx"
    learner.export(path)
    return learner, images, path


def save(image: torch.Tensor, target: Path | io.BytesIO) -> None:
    """Save an image (C, H, W) as PNG."""
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(target, "png")


def asked(
    address: str, body: bytes | None, path: str = "/", **headers: str
) -> tuple[int, dict[str, Any]]:
    """Post a picture, or get a path without one; return the status and the answer."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET" if body is None else "POST", path, body, headers)
    answer = connection.getresponse()
    return answer.status, json.load(answer)


EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 9 9
%%EndComments
showpage
"""


def test_no_picture_is_handed_to_another_program(
    pets: Pets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gs", "gswin64c"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\ntouch '{tmp_path}/was run'\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    (tmp_path / "photo.png").write_bytes(EPS)
    script = str(ROOT / "examples" / "predict_with_onnx.py")
    command = [sys.executable, script, str(pets[2]), "photo.png"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "photo.png: no picture\n")
    assert not (tmp_path / "was run").exists()


def test_the_server_answers_and_bounds_connections_time_and_memory(pets: Pets) -> None:
    learner, images, path = pets
    script = str(ROOT / "examples" / "serve_with_onnx.py")
    few = ["--port", "0", "--connections", "2", "--seconds", "6"]
    with subprocess.Popen(
        [sys.executable, script, str(path), *few],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            address = server.stdout.readline().split("/")[-1].strip()
            picture = io.BytesIO()
            save(images[0], picture)
            status, found = asked(address, picture.getvalue())
            assert (status, found["class"]) == (200, learner.predict(images[:1])[0])
            expected = float(learner.predict_proba(images[:1]).max())
            assert found["probability"] == pytest.approx(expected, abs=1e-4)
            assert "unknown" not in found
            assert asked(address, b"no picture") == (400, {"error": "what was sent: no picture"})
            assert "scans" in asked(address, 101 * b"\xff\xda")[1]["error"]  # They took minutes.
            for length in ("many", "9" * 5000, "-1", "0", str(2**24 + 1)):
                status, found = asked(address, b"1", **{"Content-Length": length})
                assert status == (413 if length == str(2**24 + 1) else 400)
                assert found["error"] == f"send 1 to {2**24} bytes"
            assert asked(address, None)[0] == 404
            start = time.monotonic()
            host, port = address.split(":")
            slow: list[socket.socket] = []
            while len(slow) < 2:  # A place is free a moment after its answer was sent.
                slow.append(socket.create_connection((host, int(port)), timeout=0.5))
                with suppress(TimeoutError):
                    with suppress(ConnectionError):
                        slow[-1].sendall(b"POST / HTTP/1.0\r\nContent-Length: 1000000\r\n\r\n")
                        slow[-1].recv(1)
                    slow.pop().close()  # It was refused.
            with socket.create_connection((host, int(port)), timeout=30) as third:
                assert third.recv(99).startswith(b"HTTP/1.0 503")
            with suppress(OSError):  # One byte in a while keeps no connection open.
                while time.monotonic() - start < 30:
                    slow[0].sendall(b"x")
                    time.sleep(0.3)
            assert time.monotonic() - start < 20
            for own in slow:
                own.close()
            while (answer := status_of(address))[0] == 503 and time.monotonic() - start < 30:
                time.sleep(0.1)
            assert answer == (200, {"status": "ok"})
            picture = io.BytesIO()
            Image.new("1", (20_000, 20_000)).save(picture, "png")
            assert asked(address, picture.getvalue())[0] == 400
        finally:
            server.terminate()


def status_of(address: str) -> tuple[int, dict[str, Any]]:
    """Ask for ``/health``; a busy server answers 503 without a body."""
    connection = http.client.HTTPConnection(address, timeout=60)
    connection.request("GET", "/health")
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read() or "{}")


def test_an_exported_model_names_pictures_beside_others(pets: Pets, tmp_path: Path) -> None:
    learner, images, path = pets
    save(images[0], tmp_path / "photo.png")
    (tmp_path / "text.png").write_text("no picture")
    script = str(ROOT / "examples" / "predict_with_onnx.py")

    def ran(*words: str) -> tuple[int, str, str]:
        command = [sys.executable, script, *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    code, shown, complaints = ran(str(path), "nix.png", "text.png", "photo.png")
    assert code == 1
    assert complaints == "nix.png: No such file or directory\ntext.png: no picture\n"
    name, best = learner.predict(images[:1])[0], float(learner.predict_proba(images[:1]).max())
    *words, share = shown.split()
    assert words == ["photo.png:", name]
    assert float(share.removesuffix("%")) == pytest.approx(100 * best, abs=0.1)
    assert ran(str(path), "photo.png") == (0, shown, "")
    assert ran("nix.onnx", "photo.png") == (1, "", "nix.onnx does not exist\n")
    assert ran("text.png", "photo.png") == (1, "", "text.png is no model that can be read\n")
