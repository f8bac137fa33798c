"""Held-out images judge every update, are never learnt from, and can turn an update down."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.data.images import pixel_keys
from grace.engine.phase import Phase, Sweep
from grace.learner.document import UpdateRecord
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.finetune import Finetune
from grace.methods.grace import Grace
from grace.methods.replay import Replay
from grace.settings.experiment import GateSettings, MemorySettings
from grace.settings.method import BaseMethodSettings
from support.contract import VARIANTS
from support.tiny_streams import SIZE, class_names, labelled, pictures, recipe, settings, watch

pytestmark = pytest.mark.usefixtures("tiny_backbones")

# It knows its first classes, then all but forgets them.
FICKLE = Finetune.Settings(base=recipe(12), update=recipe(12))


def create(
    method: BaseMethodSettings, home: Path | None = None, *, validation: int = 3, size: int = 40
) -> Learner:
    memory = MemorySettings(size=size, validation=validation)
    return Learner.create(settings(method, memory=memory), shape=(3, SIZE, SIZE), directory=home)


def teach(made: Learner, counts: Mapping[int, int], seed: int = 0, **options: Any) -> UpdateRecord:
    data = labelled(counts, seed=seed)
    return made.update(data.images, class_names(data), **options)


def learnt(made: Learner) -> set[bytes]:
    """Keys of all images that pass through the engine from now on, in phases and sweeps."""
    keys: set[bytes] = set()

    def note(item: Phase | Sweep) -> None:
        images = item.data.images
        keys.update(pixel_keys(images.gather(torch.arange(len(images)))))

    watch(made, note)
    return keys


def pixels(made: Learner, index: int) -> Tensor:
    return made.held_out.of_class(index).pixels


def held(made: Learner) -> list[int]:
    return [made.held_out.count(index) for index in range(len(made.class_names))]


@pytest.mark.parametrize("name", ["grace-compresses", "foster", "icarl", "joint"])
def test_they_are_never_learnt_from(name: str) -> None:
    # Memory too small for all images, so that not every copy can be told by it.
    made = create(VARIANTS[name], size=18)
    seen = learnt(made)
    teach(made, {0: 10, 1: 10, 2: 4})
    teach(made, {3: 12})
    # All images of class 0 again, more of class 1 that begin with the old ones, and class 2,
    # of which one image more could have been held out.
    again = {0: pictures(0, 10), 2: pictures(2, 4), 4: pictures(4, 8)}
    again[1] = torch.cat([pictures(1, 10), pictures(1, 15, seed=3)])
    labels = [f"class {index}" for index, images in again.items() for _ in images]
    made.update(torch.cat([*again.values(), pictures(0, 10)]), [*labels, *["class 0"] * 10])
    # Of class 1 a third one, where the old images are known from the new: joint has them all.
    more = 1 if name == "joint" else 0
    keys = made.held_out.keys()
    assert len(keys) == len(made.held_out) == 2 + (2 + more) + 1 + 2 + 1
    assert keys.isdisjoint(seen)
    assert len(seen) == (10 - 2) + (25 - 2 - more) + (4 - 1) + (12 - 2) + (8 - 1)


def test_copies_within_an_update_go_too() -> None:
    made = create(VARIANTS["replay"], validation=2)
    seen = learnt(made)
    one, two = pictures(0, 12), pictures(1, 6)
    # Every image of class 0 twice, and one of class 1 under the name of class 0.
    images = torch.cat([one, one, two, two[:1]])
    made.update(images, ["a"] * 24 + ["b"] * 6 + ["a"])
    assert held(made) == [2, 1]
    assert made.held_out.keys().isdisjoint(seen)
    assert made.held_out.keys() | seen == set(pixel_keys(images))
    with pytest.raises(ValueError, match="all images of class 'a' are held out already"):
        made.update(torch.cat([pixels(made, 0), pictures(2, 5)]), ["a"] * 2 + ["c"] * 5)
    assert made.class_names == ["a", "b"]


@pytest.mark.parametrize("size", [40, 2])
def test_a_known_class_gives_more_while_all_it_learnt_is_at_hand(size: int) -> None:
    made = create(VARIANTS["replay"], validation=2, size=size)
    seen = learnt(made)
    two, more = pictures(0, 2), pictures(0, 9, seed=1)
    made.update(torch.cat([two, pictures(1, 10)]), ["a"] * 2 + ["b"] * 10)
    assert held(made) == [0, 2]
    # With both images in the memory they are told, and 9 // 5 = 1 of the others is held out.
    made.update(torch.cat([two, more]), ["a"] * 11)
    assert made.held_out.count(0) == (1 if size == 40 else 0)
    assert made.held_out.keys().isdisjoint(seen)


def test_a_test_folder_is_used_as_it_is() -> None:
    made = create(VARIANTS["replay"], validation=3)
    seen = learnt(made)
    tests = {0: pictures(0, 5, seed=9), 1: pictures(1, 2, seed=9)}
    given = torch.cat([tests[1], tests[0]])
    # Two test images of class 0 are training images, too.
    images = torch.cat([pictures(0, 10), tests[0][1:3], pictures(1, 10)])
    labels, named = ["a"] * 12 + ["b"] * 10, ["b"] * 2 + ["a"] * 5
    update = made.update(images, labels, validation=(given, named))
    assert torch.equal(pixels(made, 0), tests[0][:3])
    assert torch.equal(pixels(made, 1), tests[1])
    assert update.num_images == 20
    # The same folder again adds nothing, an image more in it does; what was learnt from is not
    # held out.
    new = pictures(1, 1, seed=10)
    more = torch.cat([pictures(1, 1), given, new])
    images = torch.cat([pictures(2, 6), pictures(1, 4, seed=2), pictures(0, 4, seed=2)])
    labels = ["c"] * 6 + ["b"] * 4 + ["a"] * 4
    made.update(images, labels, validation=(more, ["b", *named, "b"]))
    assert held(made) == [3, 3, 0]
    assert torch.equal(pixels(made, 1), torch.cat([tests[1], new]))
    assert made.held_out.keys().isdisjoint(seen)
    with pytest.raises(ValueError, match="class 'd' has held-out images but none to learn"):
        made.update(images, labels, validation=(pictures(2, 2), ["d"] * 2))
    with pytest.raises(ValueError, match="2 images but 1 labels"):
        made.update(images, labels, validation=(pictures(2, 2), ["a"]))


def share(made: Learner, classes: list[int]) -> float:
    """Share of the held-out images of some classes that are named rightly, by asking."""
    found = [
        name == made.class_names[index]
        for index in classes
        if made.held_out.count(index)
        for name in made.predict(pixels(made, index))
    ]
    return sum(found) / len(found)


def test_accuracies_are_what_asking_gives() -> None:
    method = Grace.Settings(base=recipe(8), grow=recipe(4), compress=recipe(4), expand_at=(3,))
    made = create(method)
    teachers: list[float] = []

    def note(item: Phase | Sweep) -> None:
        if isinstance(item, Phase) and item.teacher is not None:
            right = []
            for index in made.held_out.classes:
                mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
                std = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)
                with torch.no_grad():
                    logits = item.teacher((pixels(made, index).float() / 255 - mean) / std)
                right += (logits.argmax(dim=1) == index).tolist()
            teachers.append(sum(right) / len(right))

    watch(made, note)
    first = teach(made, {0: 15, 1: 15, 2: 15}).accuracy
    assert (first.old_before, first.old_after, first.num_old) == (None, None, 0)
    assert (first.new_after, first.num_new) == (share(made, [0, 1, 2]), 9)
    before = share(made, [0, 1, 2])
    now = teach(made, {3: 15, 1: 15}, seed=1).accuracy
    assert (now.old_before, now.old_after) == (before, share(made, [0, 1, 2]))
    assert (now.new_after, now.num_old, now.num_new) == (share(made, [3]), 9, 3)
    assert (now.student, [now.teacher]) == (share(made, [0, 1, 2, 3]), teachers)
    grown = teach(made, {4: 10}, seed=2).accuracy
    assert (grown.teacher, grown.student) == (None, None)


def test_images_that_an_update_brings_do_not_judge_it() -> None:
    """Two folders were swapped: among the judges, their images would hide what that costs."""
    made = create(Replay.Settings(base=recipe(8), update=recipe(8)), validation=6, size=100)
    teach(made, {0: 15, 1: 15})
    known, names = [pixels(made, index) for index in (0, 1)], ["class 0", "class 1"]

    def right() -> list[int]:
        asked = map(made.predict, known)
        return [said.count(name) for said, name in zip(asked, names, strict=True)]

    before = right()
    swapped = torch.cat([pictures(1, 40, seed=1), pictures(0, 40, seed=1)])
    accuracy = made.update(swapped, [name for name in names for _ in range(40)]).accuracy
    after = right()
    assert [own.num for own in accuracy.classes] == [3, 3]
    assert [own.before for own in accuracy.classes] == before == [3, 3]
    assert [own.after for own in accuracy.classes] == after
    assert accuracy.drop == 100 * (6 - sum(after)) / 6 >= 50
    # They judge what comes next.
    assert held(made) == [6, 6]
    assert [own.num for own in teach(made, {2: 15}, seed=2).accuracy.classes] == [6, 6, 3]


def test_a_rejected_update_leaves_all_as_it_was(tmp_path: Path) -> None:
    made, alone = create(FICKLE, tmp_path / "home"), create(FICKLE)
    probe = labelled(dict.fromkeys(range(4), 4), seed=7).images
    for one in (made, alone):
        teach(one, {0: 15, 1: 15})
    said, pointer = made.predict_proba(probe), (tmp_path / "home/current.json").read_bytes()
    history, keys = list(made.history), made.held_out.keys()
    counts = dict(alone.method.memory.original_counts)
    update = teach(made, {2: 15, 3: 15}, max_drop=50.0)
    assert update.accuracy.old_before is not None
    assert update.accuracy.old_before > 0.8
    assert update.accuracy.drop is not None
    assert update.accuracy.drop > 50
    assert (update.accepted, update.gate) == (False, GateSettings(max_drop=50))
    assert not teach(alone, {2: 15, 3: 15}, max_drop=0.0).accepted
    assert torch.equal(alone.predict_proba(probe), said)
    assert (alone.method.memory.original_counts, len(alone.history)) == (counts, 1)

    assert (tmp_path / "home/current.json").read_bytes() == pointer
    assert torch.equal(made.predict_proba(probe), said)
    assert (made.class_names, made.version) == (["class 0", "class 1"], 1)
    assert (made.history, made.held_out.keys()) == (history, keys)
    assert torch.equal(Learner.load(tmp_path / "home").predict_proba(probe), said)
    home = ModelStore.open(tmp_path / "home")
    assert [d.status for d in home.survey().documents] == ["accepted", "rejected"]
    assert (home.document(2).history[-1], home.document(2).parent) == (update, 1)

    # The same again is not tried again; with a laxer gate it is another update.
    assert teach(made, {2: 15, 3: 15}, max_drop=50.0) == update
    assert home.numbers() == [1, 2]
    assert teach(made, {2: 15, 3: 15}, max_drop=100.0).accepted
    assert (home.document(3).parent, home.current(), made.version) == (1, 3, 3)
    assert home.document(3).parts == home.document(2).parts
