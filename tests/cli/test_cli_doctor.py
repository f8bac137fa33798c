"""``grace doctor`` on folders of pictures."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from grace.data.decoding import Reading
from grace.data.folders import load_update
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.replay import Replay
from grace.settings.experiment import MemorySettings
from support import commands
from support import tiny_streams as ts
from support.picture_folders import folder

pytestmark = pytest.mark.usefixtures("tiny_backbones")

QUICK = ("data.image_size=16", "backbone.name=resnet20", "engine.threads=1")


call = partial(commands.call, "doctor")


def test_what_learn_would_refuse_exits_with_2_and_says_what_to_change(tmp_path: Path) -> None:
    root = folder(tmp_path / "images", "ant", "bee", count=25)
    result = call(root, *QUICK)
    lines = result.output.splitlines()
    assert (result.exit_code, lines[0]) == (0, f"{root}: 50 images")
    assert lines[-1] == "Ready: 50 images of 2 classes can be learned."
    assert "smallest  16, 16" in result.output
    (root / "ant" / "003.png").write_bytes((root / "ant" / "003.png").read_bytes()[:100])
    (root / "bee" / "more.jpg").write_text("not a picture")
    result = call(root, *QUICK)
    assert result.exit_code == 2
    assert "ant/003.png" in result.output
    assert "bee/more.jpg" in result.output
    assert result.output.splitlines()[-1].startswith("Not ready: ")
    assert "replace or remove them, or set data.skip_unreadable=true" in result.output
    assert call(root, *QUICK, "data.skip_unreadable=true").exit_code == 0
    assert commands.call("learn", root, *QUICK, "--dry-run").output == result.output


def test_a_model_tells_known_classes_and_stays_as_it_is(tmp_path: Path) -> None:
    first = folder(tmp_path / "first", "ant", "bee")
    settings = ts.settings(
        Replay.Settings(base=ts.recipe(), update=ts.recipe()), memory=MemorySettings(size=4)
    )
    learner = Learner.create(settings, shape=(3, 16, 16), directory=tmp_path / "model")
    given = load_update(first, Reading(3, 16))
    learner.update(given.images, given.labels)
    second = folder(tmp_path / "second", "cat", "Ant", seed=1)
    model = {path: path.read_bytes() for path in (tmp_path / "model").rglob("*") if path.is_file()}
    found = json.loads(call(second, "--model", tmp_path / "model", "--json").output)
    assert [found["classes"][name]["is_new"] for name in ("Ant", "cat")] == [True, True]
    assert found["verdict"] == (
        "Not ready: class names in another spelling (1): 'Ant' is the known class 'ant'; "
        "rename the folders."
    )
    again = json.loads(call(first, "--model", tmp_path / "model", "--json").output)
    assert again["classes"]["ant"]["is_new"] is False
    assert {path: path.read_bytes() for path in model} == model
    ModelStore.open(tmp_path / "model").begin(1, "0" * 64)
    (tmp_path / "model" / "pending" / "0000.safetensors").touch()
    told = call(first, "--model", tmp_path / "model", "--json")
    assert told.stderr.startswith("An update was interrupted")
    assert json.loads(told.stdout)["classes"] == again["classes"]


def test_nothing_is_chosen_for_a_folder_without_images(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = call(tmp_path / "empty", "--json")
    assert (result.exit_code, json.loads(result.output)["chosen"]) == (2, [])
    lines = call(folder(tmp_path / "images", "cat", count=1), *QUICK).output.splitlines()
    assert any(line.startswith("network") for line in lines)
    assert any(line.endswith("  add a folder with images of another class") for line in lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "'nowhere' does not exist"),
        (["nowhere", "--model", "nobody"], "'nowhere' does not exist"),
        ([__file__], "is not a folder"),
        ([], "no images are given"),
        (["nowhere", "backbone.nam=x"], "backbone.nam"),
    ],
)
def test_wrong_words(words: list[str], message: str) -> None:
    result = call(*words)
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.splitlines()) == 1


def test_it_needs_little_time_and_no_torch(tmp_path: Path) -> None:
    """Counted is processor time, that of the decoders too."""
    root = folder(tmp_path / "images", "ant", "bee", count=600, side=64)
    script = (
        "import resource, sys\nfrom grace.cli import main\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules\n"
        "    from grace.data.decoders import end_decoders\n    end_decoders()\n"
        "    own, others = (resource.getrusage(who) for who in (0, resource.RUSAGE_CHILDREN))\n"
        "    print(own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime)\n"
    )
    words = [sys.executable, "-c", script, "doctor", str(root)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    verdict, seconds = done.stdout.splitlines()[-2:]
    assert verdict == "Ready: 1200 images of 2 classes can be learned."
    assert float(seconds) < 3
