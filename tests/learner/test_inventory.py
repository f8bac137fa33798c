"""What a saved learner holds, told from its documents alone."""

import json
from pathlib import Path

import pytest
import torch

from grace.base.tensors import encode
from grace.learner.inventory import facts
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.replay import Replay
from grace.settings.experiment import MemorySettings
from support.saved_learners import copied as copied
from support.saved_learners import saved as saved
from support.tiny_streams import SIZE, labelled, recipe, settings

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def stored(home: Path, refs: list[dict[str, str]]) -> int:
    paths = [home / "objects" / f"{ref['sha256']}.safetensors" for ref in refs]
    return sum(path.stat().st_size for path in paths)


def test_sizes_are_those_of_the_files(saved: Path) -> None:
    found = facts(ModelStore.open(saved))
    assert found["num_bytes_of_all_versions"] == size(saved / "objects") + size(saved / "versions")
    path = saved / "versions" / "0005.json"
    document, sizes = json.loads(path.read_text()), found["in_use"]["num_bytes"]
    scores = [document["calibration"]] if document["calibration"] else []
    kinds = {
        "weights_and_method_state": stored(saved, list(document["parts"].values())),
        "exemplars": stored(saved, list(document["exemplars"].values())),
        "held_out_images": stored(saved, [*document["validation"].values(), *scores]),
        "document": path.stat().st_size,
    }
    assert sizes == {**kinds, "total": sum(kinds.values()), "ceiling": 2_000_000}


def test_versions_and_classes_are_those_of_the_learner(saved: Path) -> None:
    found, learner = facts(ModelStore.open(saved)), Learner.load(saved)
    assert (found["versions"], found["rejected_versions"]) == ([1, 2, 3, 4, 5], [4])
    assert (found["interrupted_update"], found["running_update"]) == (False, None)
    own, memory = found["in_use"], learner.method.memory
    assert (own["version"], own["num_updates"], own["num_backbones"]) == (5, 4, 2)
    assert own["saturation"] == learner.history[-1].outcome.saturation is not None
    names = ["apple", "Käse", "cat", "dog", "fox"]
    kept = [(len(memory.of_class(i)), learner.held_out.count(i)) for i in range(5)]
    assert kept[2] == (0, 0) < kept[0]
    told = [[*row.values()] for row in own["classes"]]
    assert told == [[i, name, name == "cat", *kept[i]] for i, name in enumerate(names)]


def test_what_two_classes_share_is_counted_once(tmp_path: Path) -> None:
    method = Replay.Settings(base=recipe(), update=recipe())
    memory = MemorySettings(size=20)
    path = tmp_path / "twins"
    made = Learner.create(settings(method, memory=memory), shape=(3, SIZE, SIZE), directory=path)
    # Both classes keep all of their images, which are the same ones.
    images = labelled({0: 1}).images.gather(torch.tensor([0]))
    made.update(torch.cat([images, images]), ["cat", "dog"])
    own = facts(ModelStore.open(path))["in_use"]
    assert own["saturation"] is None
    assert [row["num_exemplars"] for row in own["classes"]] == [1, 1]
    assert own["num_bytes"]["exemplars"] == len(encode({"images": images}))
    assert own["num_bytes"]["total"] == size(path / "objects") + size(path / "versions")
