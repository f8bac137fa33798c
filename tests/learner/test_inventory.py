"""What a saved learner holds, told from its documents alone."""

import json
from pathlib import Path

import pytest
import torch

from grace.base.tensors import encode
from grace.learner.inventory import take_inventory
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.replay import Replay
from grace.settings.experiment import MemorySettings
from support.saved_learners import copied as copied
from support.saved_learners import saved as saved
from support.tiny_streams import SIZE, class_names, labelled, recipe, settings

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def test_sizes_are_those_of_the_files(saved: Path) -> None:
    inventory = take_inventory(ModelStore.open(saved))
    assert inventory.num_bytes == size(saved / "objects") + size(saved / "versions")
    assert inventory.in_use is not None
    document = json.loads((saved / "versions" / "0005.json").read_text())

    def stored(refs: list[dict[str, str]]) -> int:
        paths = [saved / "objects" / f"{ref['sha256']}.safetensors" for ref in refs]
        return sum(path.stat().st_size for path in paths)

    kinds = inventory.in_use.num_bytes
    assert kinds.weights == stored(list(document["parts"].values()))
    assert kinds.exemplars == stored(list(document["exemplars"].values()))
    scores = [document["calibration"]] if document["calibration"] else []
    assert kinds.held_out == stored([*document["validation"].values(), *scores])
    assert kinds.document == (saved / "versions" / "0005.json").stat().st_size
    assert kinds.total == sum((kinds.weights, kinds.exemplars, kinds.held_out, kinds.document))


def test_classes_and_their_images_are_those_of_the_learner(saved: Path) -> None:
    in_use = take_inventory(ModelStore.open(saved)).in_use
    assert in_use is not None
    assert [entry.name for entry in in_use.classes] == ["apple", "Käse", "cat", "dog", "fox"]
    assert [entry.is_forgotten for entry in in_use.classes] == [False, False, True, False, False]
    learner = Learner.load(saved)
    for entry in in_use.classes:
        assert entry.num_exemplars == len(learner.method.memory.of_class(entry.index))
        assert entry.num_held_out == learner.held_out.count(entry.index)
    assert in_use.classes[2].num_exemplars == in_use.classes[2].num_held_out == 0
    assert in_use.classes[0].num_held_out == 3


def test_versions(saved: Path) -> None:
    inventory = take_inventory(ModelStore.open(saved))
    assert (inventory.versions, inventory.rejected) == ([1, 2, 3, 4, 5], [4])
    assert not inventory.is_interrupted
    assert inventory.in_use.document.number == 5
    assert inventory.in_use.last.new_class_names == ("fox",)
    # The one before assessed too: the last one counts.
    assert inventory.in_use.assessed == inventory.in_use.last


def test_after_a_rollback_the_earlier_version_is_told(copied: Path) -> None:
    Learner.load(copied).rollback(2)
    inventory = take_inventory(ModelStore.open(copied))
    assert inventory.in_use.document.number == 2
    assert [entry.name for entry in inventory.in_use.classes] == ["apple", "Käse", "cat"]
    assert len(inventory.versions) == 5


def test_a_learner_that_has_learnt_nothing(tmp_path: Path) -> None:
    method = Replay.Settings(base=recipe(), update=recipe())
    Learner.create(settings(method), shape=(1, SIZE, SIZE), directory=tmp_path / "new")
    inventory = take_inventory(ModelStore.open(tmp_path / "new"))
    assert (inventory.in_use, inventory.versions, inventory.num_bytes) == (None, [], 0)
    assert inventory.shape == (1, SIZE, SIZE)
    assert inventory.settings.method.name == "replay"


def test_what_two_classes_share_is_counted_once(tmp_path: Path) -> None:
    method = Replay.Settings(base=recipe(), update=recipe())
    memory = MemorySettings(size=20)
    path = tmp_path / "twins"
    made = Learner.create(settings(method, memory=memory), shape=(3, SIZE, SIZE), directory=path)
    # Both classes keep all of their images, which are the same ones.
    images = labelled({0: 1}).images.gather(torch.tensor([0]))
    made.update(torch.cat([images, images]), ["cat", "dog"])
    in_use = take_inventory(ModelStore.open(path)).in_use
    assert in_use is not None
    assert [entry.num_exemplars for entry in in_use.classes] == [1, 1]
    assert in_use.num_bytes.exemplars == len(encode({"images": images}))
    assert in_use.num_bytes.total == size(path / "objects") + size(path / "versions")


def test_before_anything_was_assessed_and_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "young"
    method = Replay.Settings(base=recipe(), update=recipe())
    chosen = settings(method, memory=MemorySettings(size=6, validation=1))
    made = Learner.create(chosen, shape=(3, SIZE, SIZE), directory=path)
    data = labelled({0: 6, 1: 6})
    made.update(data.images, class_names(data))
    in_use = take_inventory(ModelStore.open(path)).in_use
    assert in_use.assessed is None
    assert [entry.num_held_out for entry in in_use.classes] == [1, 1]
    # The scores of the held-out images are among what is kept.
    assert in_use.num_bytes.total == size(path / "objects") + size(path / "versions")
