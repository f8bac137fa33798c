"""A real small learner on the disk, with everything that one can have, and its files put back."""

import os
import shutil
import stat
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
Signature = tuple[int, int, int]


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
        """Return the convolution and batch norm."""
        return self.conv, self.norm

    @override
    def maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """Map images (B, C, H, W) to what these two give, (B, 6, H, W)."""
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
    """Build them so for a while."""
    with mock.patch("grace.methods.module_factory.build_backbone", small_backbone):
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
    """The learner's files, which can be put back as they were.

    Args:
        path: its folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        entries = [(p.relative_to(path), p) for p in sorted(path.rglob("*"))]
        self.folders = [Path(), *(name for name, p in entries if p.is_dir())]
        self.files = {name: p.read_bytes() for name, p in entries if p.is_file()}
        self._signatures = {name: signature(path / name) for name in self.files}
        everything = (*self.folders[1:], *self.files)
        self._known = {f: {p.name for p in everything if p.parent == f} for f in self.folders}

    def restore(self) -> None:
        """Put every file and folder back."""
        for name in self.folders:
            folder = self.path / name
            if not stat.S_ISDIR(mode(folder)):
                remove(folder)
                folder.mkdir()
            for entry in list(os.scandir(folder)):
                if entry.name not in self._known[name]:
                    remove(folder / entry.name)
        for name, data in self.files.items():
            path = self.path / name
            if signature(path) != self._signatures[name]:
                remove(path)
                path.write_bytes(data)
                self._signatures[name] = signature(path)

    def looks(self) -> dict[str, Signature]:
        """Describe what lies in the folder, to see later whether anything was changed."""
        found: dict[str, Signature] = {}
        folders = [str(self.path)]
        while folders:
            for entry in os.scandir(folders.pop()):
                status = entry.stat(follow_symlinks=False)
                found[entry.path] = (status.st_mode, status.st_size, status.st_mtime_ns)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
        return found


def mode(path: Path) -> int:
    """Kind and permissions of what lies there; 0 for nothing."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return 0


def signature(path: Path) -> Signature:
    """What changes when a file does."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return (0, 0, 0)
    return (found.st_mode, found.st_size, found.st_mtime_ns)


def remove(path: Path) -> None:
    """Remove whatever lies there."""
    if stat.S_ISDIR(mode(path)):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def sound_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A sound learner in the folder ``model``, and ``outside`` beside it a secret."""
    path = tmp_path_factory.mktemp("hostile") / "model"
    with small_backbones(), mock.patch("os.fsync"):
        make_model(path)
        (path.parent / "outside").mkdir()
        (path.parent / "outside" / "secret.json").write_text('{"version": 1}\n')
        yield Model(path)


@pytest.fixture
def spoilt(sound_model: Model) -> Iterator[Model]:
    """The same learner, for a test that spoils it: it is put back."""
    yield sound_model
    sound_model.restore()
