"""Settings of a learner change: a new version, what it knows stays, what is too much goes."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import grace
from grace.base.errors import BusyError
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.foster import Foster
from grace.methods.replay import Replay
from grace.settings.experiment import MemorySettings
from support.contract import VARIANTS
from support.tiny_streams import class_names, labelled, recipe, same, settings, state
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")

ONE = recipe()


def made(home: Path | None, method: Any = None, **memory: Any) -> Learner:
    """A learner of three classes with ten images each."""
    kept = MemorySettings(**{"size": 24, "validation": 2} | memory)
    chosen = settings(method or Replay.Settings(base=ONE, update=ONE), memory=kept)
    learner = Learner.create(chosen, shape=(3, 8, 8), directory=home)
    teach(learner, 0, 1)
    teach(learner, 2)
    return learner


def teach(learner: Learner, *classes: int, **options: Any) -> Any:
    data = labelled(dict.fromkeys(classes, 10))
    return learner.update(data.images, class_names(data), **options)


def exemplars(learner: Learner) -> list[torch.Tensor]:
    kept = map(learner.method.memory.of_class, learner.method.memory.classes)
    return [images.gather(torch.arange(len(images))) for images in kept]


def test_a_change_is_a_new_version_that_predicts_the_same(tmp_path: Path) -> None:
    learner, home = made(tmp_path / "model"), ModelStore.open(tmp_path / "model")
    asked = labelled({0: 3, 2: 3}, seed=4).images
    before, scores = exemplars(learner), learner.scores(asked)["linear"]
    assert learner.change_settings("memory.size=24") == ()
    changes = learner.change_settings("memory.size=9", "method.update.epochs=3")
    assert list(map(str, changes)) == ["memory.size 24 → 9", "method.update.epochs 1 → 3"]
    loaded = Learner.load(shutil.copytree(tmp_path / "model", tmp_path / "copy"))
    for one in (learner, loaded):
        assert (one.version, one.settings.memory.size) == (3, 9)
        # The first three of each class, in herding order.
        assert all(torch.equal(a, b[:3]) for a, b in zip(exemplars(one), before, strict=True))
        assert torch.equal(one.scores(asked)["linear"], scores)
        # What it learns in memory, it also learns when it is loaded.
        assert teach(one, 3).num_exemplars == 8  # 9 // 4 of each of four classes
    assert same(state(learner.method.network), state(loaded.method.network))
    document = home.document(3)
    assert (document.parent, document.changed, document.settings.memory.size) == (2, changes, 9)
    with home.changing(), pytest.raises(BusyError):
        learner.rollback(2)
    assert (learner.settings.memory.size, learner.version) == (9, 4)
    assert home.document(4).changed == ()


REFUSED = {
    "method=der": "another method cannot use what this one has learnt",
    "backbone.name=resnet32": "its weights belong to that backbone",
    "data.image_size=16": "have that size",
    "seed=9": "draws have followed",
    "memory.sise=9": "did you mean 'memory.size'",
    "memory.size=two": "memory.size = 'two' should be",
    "memory.size=2": "too small for 3 classes",
    "memory.size=none": "set one of them",
}


def test_what_cannot_change_is_refused_with_the_reason(tmp_path: Path) -> None:
    learner = made(tmp_path / "model")
    before = state(learner.method.network)
    for text, why in REFUSED.items():
        with pytest.raises(grace.GraceError, match=why):
            learner.change_settings(text)
    with pytest.raises(TypeError, match=r"a text of its own: 'memory\.max_mb=8'"):
        learner.change_settings(["memory.size=9"])
    assert (learner.version, ModelStore.open(tmp_path / "model").numbers()) == (2, [1, 2])
    assert same(state(learner.method.network), before)
    assert len(learner.method.memory) == 24
    assert teach(learner, 3).task == 3


def test_a_ceiling_is_set_raised_lowered_and_removed(tmp_path: Path) -> None:
    learner = made(tmp_path / "model", size=None, per_class=8)
    home = ModelStore.open(tmp_path / "model")
    with pytest.raises(grace.GraceError, match="this learner needs at least") as refused:
        learner.change_settings("memory.max_mb=0.1")
    # The ceiling that the message names is enough, and leaves one exemplar of each class.
    enough = refused.value.remedy.rpartition("=")[2]
    learner.change_settings(f"memory.max_mb={enough}")
    assert home.document(3).num_bytes <= float(enough) * 1e6
    assert 3 <= len(learner.method.memory) < 3 * 8
    # Too little for the next classes, which the message says.
    with pytest.raises(grace.GraceError) as full:
        teach(learner, 3, 4, 5)
    learner.change_settings(f"memory.max_mb={full.value.remedy.rpartition('=')[2]}")
    assert teach(learner, 3, 4, 5).accepted
    learner.change_settings("memory.max_mb=none", "memory.validation=1")
    loaded = Learner.load(tmp_path / "model")
    assert (loaded.model.ceiling, len(loaded.held_out)) == (None, 6)
    assert len(loaded.recogniser.familiarities) == 6
    learner.rollback(3)
    assert learner.settings.memory.max_mb == float(enough)


@pytest.mark.parametrize(
    "variant", ["beef", "create", "dgr", "icarl", "joint", "memo", "tagfex", "wa"]
)
def test_methods_take_other_settings(variant: str) -> None:
    learner = made(None, VARIANTS[variant])
    if learner.settings.method.traits.memory != "all images":
        learner.change_settings("memory.max_mb=9")
        learner.change_settings("memory.max_mb=none")
    learner.change_settings("engine.eval_batch_size=7", "data.augmentation=none")
    assert teach(learner, 3, 4).task == 3


def test_foster_drops_its_teacher_under_a_ceiling(tmp_path: Path) -> None:
    learner = made(tmp_path / "model", Foster.Settings(base=ONE, boost=ONE, compress=ONE))
    assert "teacher" in "".join(ModelStore.open(tmp_path / "model").document(2).parts)
    learner.change_settings("memory.max_mb=2")
    assert "teacher" not in "".join(ModelStore.open(tmp_path / "model").document(3).parts)
    learner.rollback(2)
    assert learner.settings.memory.max_mb is None
