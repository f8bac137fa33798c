"""A tiny learner with a past, saved: grown, compressed, refused once, one class forgotten."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from grace.learner.learner import Learner
from grace.methods.grace import Grace
from grace.methods.replay import Replay
from grace.settings.experiment import MemorySettings
from support.tiny_streams import SIZE, class_names, labelled, pictures, recipe, settings

NAMES = ("apple", "Käse", "cat", "dog", "fox")


def teach(learner: Learner, images: Tensor, name: str, **options: Any) -> bool:
    """Teach one class; tell whether that was accepted."""
    return learner.update(images, [name] * len(images), **options).accepted


def three_versions(home: Path) -> Path:
    """A learner of two, three and four classes."""
    method = Replay.Settings(base=recipe(), update=recipe())
    chosen = settings(method, memory=MemorySettings(size=20, validation=2))
    made = Learner.create(chosen, shape=(3, SIZE, SIZE), directory=home)
    for counts in ({0: 8, 1: 8}, {2: 8}, {3: 8}):
        data = labelled(counts)
        made.update(data.images, class_names(data))
    return home


def make(home: Path) -> Learner:
    """Versions 1 (apple, Käse), 2 (cat), 3 (dog), 4 (emu: rejected), 5 (fox); cat is forgotten."""
    method = Grace.Settings(base=recipe(10), grow=recipe(4), compress=recipe(4), expand_at=(3,))
    memory = MemorySettings(size=30, validation=3, max_mb=2)
    learner = Learner.create(settings(method, memory=memory), shape=(3, SIZE, SIZE), directory=home)
    first = labelled({0: 18, 1: 18})
    learner.update(first.images, [NAMES[int(label)] for label in first.labels])
    for index in (2, 3):
        teach(learner, pictures(index, 18), NAMES[index])
    # Emus that look like apples take their place.
    assert not teach(learner, pictures(0, 40, seed=1), "emu", max_drop=5)
    assert teach(learner, pictures(4, 18), "fox", max_drop=100)
    learner.forget("cat")
    return learner


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, tiny_backbones: None) -> Path:
    """Home of that learner, made once for all modules; tests must not change it."""
    home = tmp_path_factory.getbasetemp() / "saved" / "pets"
    if not home.exists():
        make(home)
    return home


@pytest.fixture
def copied(saved: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    return Path(shutil.copytree(saved, tmp_path / "pets"))
