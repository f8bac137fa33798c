"""The tutorial's commands work, one after the other, on a smaller set of images."""

import io
import os
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from grace.base.tensors import encode
from grace.nn.weights import build_backbone
from grace.settings.experiment import BackboneSettings
from support.commands import ran
from support.picture_folders import picture

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "learner" / "tutorial.md"
PLACES = ("ant", "bee", "cat", "dog")
BACKBONE = "timm/test_efficientnet"


def commands() -> list[str]:
    """Every line of the page's bash blocks, comments left out."""
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def archive(path: Path) -> None:
    """An archive laid out like the tutorial's, with tiny pictures."""
    text = (ROOT / "examples" / "tutorial_images.py").read_text()
    keys = re.findall(r'"(n\d+_\w+)"', text)
    assert len(keys) == 10
    with tarfile.open(path, "w") as tar:
        for place, key in enumerate(keys):
            for part, count in (("train", 20), ("test", 4)):
                for number in range(count):
                    seed = 1000 * place + 100 * (part == "test") + number
                    held = io.BytesIO()
                    picture(PLACES[place % 4], seed).save(held, "PNG")
                    entry = tarfile.TarInfo(f"{part}/{key}/{number:02}.png")
                    entry.size = len(held.getvalue())
                    held.seek(0)
                    tar.addfile(entry, held)


def smaller(command: str) -> str:
    """The same command with the least training, on small images."""
    command = command.replace("timm/tf_efficientnet_lite0", BACKBONE)
    command = re.sub(r" --minutes \d+", "", command)
    command = re.sub(r"(--max-mb \d+)", r"\1 --minutes 0.001", command)
    command += " data.image_size=32 backbone.input_size=32" if BACKBONE in command else ""
    command = re.sub(r"(tutorial_images.*)", r"\1 --train 16 --more 4", command)
    # Too little is learnt to be judged by what is lost.
    command = re.sub(r"--min-accuracy \d+", "--min-accuracy 1", command)
    return re.sub(r"--max-drop \d+", "--max-drop 100", command)


@pytest.mark.usefixtures("tiny_backbones")
def test_the_tutorial_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    archive(tmp_path / "tiny-imagenet-20-64px.tar")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    backbone = build_backbone(BackboneSettings(name=BACKBONE), 3, 77)
    (tmp_path / "lite0.safetensors").write_bytes(encode(backbone.state_dict()))
    lines = commands()
    verbs = {shlex.split(command)[1] for command in lines if command.startswith("grace ")}
    assert verbs >= {
        "doctor", "learn", "history", "evaluate", "predict", "rollback", "forget", "export", "set"
    }  # fmt: skip
    for command in lines:
        words = shlex.split(smaller(command))
        if words[0] == "grace":
            assert ran(*words[1:]).output.strip(), command
        else:
            assert words[0] == "python", command
            found = {word: sorted(map(str, Path().glob(word))) for word in words}
            words = [path for word in words for path in found[word] or [word]]
            environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
            subprocess.run(
                [sys.executable, *words[1:]], check=True, env=environment, capture_output=True
            )
    names = [folder.name for folder in (tmp_path / "products").glob("test/*")]
    assert len(names) == 10
