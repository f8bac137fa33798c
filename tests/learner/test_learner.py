"""The learner as people use it: arrays and names in, names and probabilities out."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from grace.engine.phase import Phase, Sweep
from grace.learner.learner import Learner
from grace.methods.der import DER
from grace.methods.finetune import Finetune
from grace.methods.grace import Grace
from grace.methods.joint import Joint
from grace.methods.replay import Replay
from grace.settings.experiment import MemorySettings
from grace.settings.load import ConfigWarning
from support.tiny_streams import learner, pictures, recipe, same, state, watch

pytestmark = pytest.mark.usefixtures("tiny_backbones")

REPLAY = Replay.Settings(base=recipe(15), update=recipe(15))


def animals(counts: dict[str, int], seed: int = 0) -> tuple[Tensor, list[str]]:
    """Images and names, the classes mixed."""
    known = ("cat", "dog", "emu", "fox")
    images = torch.cat([pictures(known.index(name), n, seed=seed) for name, n in counts.items()])
    labels = [name for name, n in counts.items() for _ in range(n)]
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    return images[order], [labels[int(i)] for i in order]


@pytest.fixture(scope="module")
def taught(tiny_backbones: None) -> Learner:
    """A learner of three animals in two updates; tests must not change it."""
    made = learner(REPLAY, memory=MemorySettings(size=60))
    for counts in ({"dog": 20, "cat": 20}, {"emu": 20}):
        made.update(*animals(counts))
    return made


def test_it_recognises_what_it_was_taught(taught: Learner) -> None:
    images, labels = animals({"cat": 8, "dog": 8, "emu": 8}, seed=9)
    predictions, probabilities = taught.predict(images), taught.predict_proba(images)
    right = sum(p == label for p, label in zip(predictions, labels, strict=True))
    assert taught.score(images, labels) == right / 24 > 0.9
    # Class names stand in the order of appearance.
    first = animals({"dog": 20, "cat": 20})[1][0]
    assert taught.class_names == [first, "dog" if first == "cat" else "cat", "emu"]
    assert [len(update.new_class_names) for update in taught.history] == [2, 1]
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(24))
    assert [taught.class_names[int(i)] for i in probabilities.argmax(dim=1)] == predictions
    array: Any = images.numpy()
    assert torch.equal(taught.predict_proba(array), probabilities)
    assert taught.score(array, np.array(labels)) == right / 24  # type: ignore[arg-type]


def test_every_predictor_scores_the_primary_one_first(taught: Learner) -> None:
    images, _ = animals({"cat": 5, "emu": 5}, seed=9)
    scores = taught.scores(images)
    assert list(scores) == ["linear", "nearest_mean"]
    torch.testing.assert_close(scores["linear"].softmax(1), taught.predict_proba(images))
    # By hand: normalised features against the stored means, docs/protocols.md#classifiers.
    network, memory = taught.method.network, taught.method.memory
    with torch.no_grad():
        features = network.features((images.float() / 255 - 0.4) / 0.3)
        means = []
        for index in memory.classes:
            pixels = memory.of_class(index).gather(torch.arange(len(memory.of_class(index))))
            stored = network.features((pixels.float() / 255 - 0.4) / 0.3)
            mean = (stored / stored.norm(dim=1, keepdim=True)).mean(0)
            means.append(mean / mean.norm())
        unit = features / features.norm(dim=1, keepdim=True)
        logits = features @ network.head.weight.T + network.head.bias
    expected = -(unit[:, None] - torch.stack(means)).square().sum(2)
    torch.testing.assert_close(scores["nearest_mean"], expected, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(scores["linear"], logits, rtol=1e-3, atol=1e-4)


def test_size_counts_what_is_kept(taught: Learner) -> None:
    size = taught.size()
    # ResNet-8 by hand: convolutions 432 + 2·2304 + 4608 + 9216 + 18432 + 36864 = 74,160 and
    # batch norm over 240 channels; head 64·3 + 3.
    assert (size.num_backbones, size.backbone_parameters) == (1, 74_160 + 480)
    assert size.head_parameters == 195
    # And 2 statistics per channel, a counter of 8 bytes in each of 7 batch norms.
    assert size.weight_bytes == 4 * (74_160 + 480 + 480 + 195) + 7 * 8


def test_numbers_are_names_too() -> None:
    made = learner(Finetune.Settings(base=recipe()))
    images, _ = animals({"cat": 3, "dog": 3})
    labels: Any = [7, "7", 8, 8, 7, 8]
    made.update(images, labels)
    assert made.class_names == ["7", "8"]
    right = [name == str(own) for name, own in zip(made.predict(images), labels, strict=True)]
    assert made.score(images, labels) == sum(right) / 6
    with pytest.warns(ConfigWarning, match="task 2 has one new class and finetune compares"):
        made.update(*animals({"emu": 3}))


def test_an_update_tells_what_it_cost() -> None:
    made = learner(Grace.Settings(base=recipe(2), grow=recipe(3), compress=recipe(), threshold=1.0))
    made.update(*animals({"cat": 6, "dog": 6}))
    update = made.update(*animals({"emu": 6}))
    assert update.task == 2
    names = [(work.name, work.epochs) for work in update.work]
    # Memory 13 // 2 = 6 of each class: 6 new images and 12 exemplars; 13 // 3 = 4 after.
    assert names[:3] == [("grow", 3), ("assess", 0), ("compress", 1)]
    assert [work.images for work in update.work] == [18, 18, 18, 6, 12]
    assert all(work.seconds.total > 0 for work in update.work)
    # Asking afterwards adds nothing to what was told.
    made.predict(animals({"cat": 1})[0])
    assert (len(update.work), made.history[1]) == (5, update)


def test_joint_waits_for_the_last_task_if_told() -> None:
    made = learner(Joint.Settings(base=recipe(6, lr=0.1), final_task_only=True))
    phases: list[str] = []
    watch(made, lambda item: phases.append(item.name))
    assert made.update(*animals({"cat": 12, "dog": 12})).outcome.verdict == "skip"
    one, labels = animals({"cat": 1})
    assert (made.size().num_backbones, made.scores(one)) == (0, {})
    for ask in (lambda: made.predict(one), lambda: made.score(one, labels)):
        with pytest.raises(ValueError, match="nothing has been learnt yet: call update first"):
            ask()
    last = made.update(*animals({"emu": 12}), is_last=True)
    assert (last.outcome.verdict, phases, last.work[0].images) == ("start", ["base"], 36)
    assert made.score(*animals({"cat": 8, "dog": 8, "emu": 8}, seed=9)) > 0.8


@pytest.mark.parametrize(
    ("method", "counts", "message"),
    [
        (REPLAY, {"cat": 5}, "first update needs images of at least two classes"),
        *(
            (method, {"cat": 3, "dog": 3}, "a memory of 1 images is too small for 2 classes")
            for method in (REPLAY, DER.Settings(base=recipe()), Grace.Settings(base=recipe()))
        ),
    ],
)
def test_a_first_update_is_refused_before_anything_is_trained(
    method: Any, counts: dict[str, int], message: str
) -> None:
    made = learner(method, memory=MemorySettings(size=1))
    phases: list[Phase | Sweep] = []
    watch(made, phases.append)
    with pytest.raises(ValueError, match=message):
        made.update(*animals(counts))
    assert (phases, made.class_names, made.history) == ([], [], [])


@pytest.mark.parametrize(
    ("images", "labels", "kind", "message"),
    [
        (torch.zeros(2, 1, 8, 8).byte(), ["cat", "dog"], ValueError, r"have shape \(1, 8, 8\)"),
        (torch.zeros(2, 3, 8, 8), ["cat", "dog"], TypeError, "must be uint8"),
        (torch.zeros(3, 3, 8, 8).byte(), ["cat", "dog"], ValueError, "3 images but 2 labels"),
        (torch.zeros(0, 3, 8, 8).byte(), [], ValueError, "no images were given"),
    ],
)
def test_images_that_do_not_fit_leave_the_learner_as_it_was(
    images: Tensor, labels: list[str], kind: type[Exception], message: str, taught: Learner
) -> None:
    before = state(taught.method.network)
    for ask in (taught.update, taught.score):
        with pytest.raises(kind, match=message):
            ask(images, labels)
    assert same(state(taught.method.network), before)
    assert len(taught.history) == 2
