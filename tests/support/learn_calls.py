"""``grace learn`` called in this process, as people call it, on tiny images."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from support.commands import ran
from support.picture_folders import folder

TINY = (
    "backbone.name=resnet20",
    "data.image_size=16",
    "engine.device=cpu",
    "engine.threads=1",
    "engine.compile=false",
    "data.augmentation=none",
    "method.base.epochs=2",
    "method.base.batch_size=8",
)
GRACE = (*TINY, "method.grow.epochs=1", "method.compress.epochs=1", "method.compress.lr=0.01")
FINETUNE = (*TINY, "method=finetune", "method.update.epochs=2", "method.update.batch_size=8")


learn = partial(ran, "learn")


def refused(*arguments: Any) -> str:
    """Learn what cannot be learnt; return the one line that says why."""
    result = learn(*arguments, code=2)
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, result.stderr
    return str(lines[0])


def files(model: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(model.rglob("*")) if path.is_file())
    return {str(path.relative_to(model)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_backbones: None) -> tuple[Path, Path, Any]:
    """Images of two classes, a learner of them, and what its making printed."""
    place = tmp_path_factory.mktemp("made")
    images = folder(place / "first", "ant", "bee")
    return images, place / "model", learn(images, "--model", place / "model", *GRACE)


@pytest.fixture
def first(made: tuple[Path, Path, Any], tmp_path: Path) -> tuple[Path, Path]:
    """The same images, and a copy of the learner to be changed."""
    return made[0], shutil.copytree(made[1], tmp_path / "model")
