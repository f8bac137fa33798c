"""A real small learner on the disk, with everything that one can have; it can be put back."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, final
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.base.randomness import generator
from grace.engine.phase import Phase
from grace.learner.learner import Learner
from grace.methods.grace import Grace
from grace.nn.backbone import Backbone
from grace.nn.weights import build_backbone
from grace.settings.experiment import BackboneSettings, MemorySettings
from support import tiny_streams

FRESH = tiny_streams.labelled({4: 6}, seed=3)
PROBE = tiny_streams.labelled({0: 1, 3: 1}, seed=9).images


@final
class SmallBackbone(Backbone):
    """One convolution with batch norm: everything that a file holds of a backbone, in little."""

    def __init__(self, num_channels: int, draws: torch.Generator) -> None:
        super().__init__()
        self.name = "small"
        self.feature_dim = 6
        self.map_channels = (6, 6)
        self.conv = nn.Conv2d(num_channels, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.pool = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        nn.init.normal_(self.conv.weight, std=0.3, generator=draws)

    @override
    def stages(self) -> tuple[nn.Module, ...]:
        return self.conv, self.norm

    @override
    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        raw = self.conv(images)
        return raw, self.norm(raw)


def small_backbone(
    settings: BackboneSettings, num_channels: int, seed: int, *purpose: str | int
) -> Backbone:
    """Build a small one where ResNet-20 is asked for, and what is asked for otherwise."""
    if settings.name != "resnet20":
        return build_backbone(settings, num_channels, seed, *purpose)
    return SmallBackbone(num_channels, generator(seed, *purpose))


@contextmanager
def small_backbones() -> Iterator[None]:
    """Build such backbones; batch norm is not folded, which traces them for a third of the time."""
    with (
        mock.patch("grace.methods.module_factory.build_backbone", small_backbone),
        mock.patch("grace.engine.trainer.folded", lambda module: module),
    ):
        yield


def make_model(path: Path) -> None:
    """Make a learner of five classes with everything a learner can have.

    Two versions, two backbones, exemplars, held-out images and their scores, a forgotten class,
    and a third update that was interrupted in its last phase.
    """
    recipe = tiny_streams.recipe(1)
    method = Grace.Settings(base=recipe, grow=recipe, compress=recipe, expand_at=(2,))
    settings = tiny_streams.settings(method, memory=MemorySettings(size=20, validation=2))
    learner = Learner.create(settings, shape=(3, 8, 8), directory=path)
    for counts in ({0: 8, 1: 8, 2: 8}, {3: 8}):
        data = tiny_streams.labelled(counts)
        learner.update(data.images, tiny_streams.class_names(data))
        if 1 in counts:
            learner.forget("class 1")

    def stop(item: Any, result: object) -> None:
        if isinstance(item, Phase) and item.name == "compress":
            raise KeyboardInterrupt

    tiny_streams.watch(learner, after=stop)
    with suppress(KeyboardInterrupt):
        update(learner)


def update(learner: Learner) -> None:
    """Ask for the update that was interrupted."""
    learner.update(FRESH.images, tiny_streams.class_names(FRESH))


@final
class Model:
    """A learner's folder and what its files hold; it can be put back as it was."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outside = path.parent / "outside"
        """A folder beside it, full of what spoilt files reach for."""
        found = [own for own in sorted(path.rglob("*")) if own.is_file()]
        self.files = {own.relative_to(path).as_posix(): own.read_bytes() for own in found}
        self._kept = Path(shutil.copytree(path, path.with_name("kept")))
        self._looks = looks(path)

    def restore(self) -> None:
        """Put every file and folder back."""
        if looks(self.path) != self._looks:
            # Folders may be deeper than Python's rmtree goes.
            subprocess.run(["rm", "-r", str(self.path)], check=True)
            shutil.copytree(self._kept, self.path)
            self._looks = looks(self.path)


def looks(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Describe what lies in a folder, to see later whether anything was changed."""
    found = {}
    for place, folders, files in os.walk(folder):
        if place.count("/") > 100:  # It is too deep.
            folders.clear()
        for name in (*folders, *files):
            status = Path(place, name).lstat()
            facts = (status.st_size, status.st_mtime_ns) if name in files else (0, 0)
            found[f"{place}/{name}"] = (status.st_mode, *facts)
    return found


@pytest.fixture(scope="module")
def sound_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A sound learner in the folder ``model``, and ``outside`` beside it a secret."""
    path = tmp_path_factory.mktemp("hostile") / "model"
    with small_backbones():
        make_model(path)
        outside = path.parent / "outside"
        (outside / "versions").mkdir(parents=True)
        (outside / "secret.json").write_text('{"version": 1}\n')
        (outside / f".grace-unfinished-{'0' * 32}").write_text("a killed writer's, elsewhere")
        yield Model(path)


@pytest.fixture
def spoilt(sound_model: Model) -> Iterator[Model]:
    """The same learner, for a test that spoils it: it is put back."""
    yield sound_model
    sound_model.restore()
