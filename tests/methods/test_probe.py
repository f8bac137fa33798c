import math
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.engine.phase import Phase, Sweep, Work
from grace.methods.probe import Probe
from grace.nn.heads import MASKED
from support.driven import batch, drive, forget
from support.tiny_streams import class_names, labelled, learner, recipe, same, state, task, watch
from support.typed import typed

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def probe(**choices: Any) -> Probe:
    return typed(Probe, learner(Probe.Settings(**({"update": recipe()} | choices))).method)


def rows(*values: tuple[float, float]) -> Tensor:
    """Features of which only the first two differ from 0."""
    found = torch.zeros(len(values), 64)
    found[:, :2] = torch.tensor(values)
    return found


def given(features: Tensor) -> Any:
    return lambda item: features if isinstance(item, Sweep) else None


def score(method: Probe, name: str, features: Tensor) -> Tensor:
    return method.classifiers()[name].score(features)


def test_the_nearest_mean_is_that_of_raw_features() -> None:
    method = probe(head="nearest_mean")
    features = rows((3, 0), (0, 1), (0, 2), (0, 2))
    _, items = drive(method, task(1, {0: 2, 1: 2}, 0), given(features))
    assert [item.name for item in items] == ["features"]
    # Class 0: the mean (1.5, 0.5), direction (.9487, .3162); of unit features it would be
    # (.7071, .7071). With (1, 2): cosines .7071 and .8944, scores 2·cos − 2.
    found = score(method, "nearest_mean", rows((1, 2)))
    expected = torch.tensor([[2 * math.sqrt(0.5) - 2, 4 / math.sqrt(5) - 2]])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert list(method.classifiers()) == ["nearest_mean"]


def test_more_images_of_a_class_go_on_with_its_mean() -> None:
    method = probe(head="nearest_mean")
    drive(method, task(1, {0: 1, 1: 1}, 0), given(rows((4, 0), (0, 1))))
    drive(method, task(2, {0: 3}, 2, seed=1), given(rows((0, 2), (0, 1), (0, 1))))
    # One of (4, 0), three that sum to (0, 4): the mean is (1, 1).
    assert method.sums.value["sums"][0, :2].tolist() == [4, 4]
    assert method.sums.value["counts"].tolist() == [4, 1]
    found = score(method, "nearest_mean", rows((1, 1)))
    torch.testing.assert_close(found[0, 0], torch.tensor(0.0), atol=1e-6, rtol=0)


def test_neither_order_nor_split_of_the_classes_changes_the_means() -> None:
    settings = Probe.Settings(head="nearest_mean")
    data = labelled(dict.fromkeys(range(4), 6))
    names = class_names(data)
    whole, parts = learner(settings), learner(settings)
    whole.update(data.images, names)
    for chosen in ((3, 1), (0, 2)):
        part = labelled(dict.fromkeys(chosen, 6))
        parts.update(part.images, class_names(part))
    test = labelled(dict.fromkeys(range(4), 5), seed=3).images
    assert whole.predict(test) == parts.predict(test)
    order = [parts.class_names.index(name) for name in whole.class_names]
    torch.testing.assert_close(
        parts.decision_function(test)[:, order], whole.decision_function(test)
    )


@pytest.mark.parametrize(("prior", "expected"), [("balanced", 0.25), ("none", 0.5)])
def test_the_loss_by_hand(prior: str, expected: float) -> None:
    method = probe(class_prior=prior)
    _, items = drive(method, task(1, {0: 6, 1: 2}, 0))
    (phase,) = [item for item in items if isinstance(item, Phase)]
    # Equal logits: the loss is −log of class 1's share of the images, 2/8, or of 1/2 without it.
    losses = phase.objective(batch(phase, [1, 1], {"head": torch.zeros(2, 2)}))
    found = float(losses["classification"].value)
    assert found == pytest.approx(-math.log(expected), abs=1e-6)


def test_only_images_that_are_new_pass_the_backbone() -> None:
    made = learner(Probe.Settings(update=recipe()))
    swept: list[tuple[str, int]] = []

    def hear(item: Work, result: Any) -> None:
        swept.append((item.name, len(item.data)))  # type: ignore[union-attr]

    watch(made, after=hear)
    for counts in ({0: 8, 1: 7}, {2: 9}, {0: 4}):
        data = labelled(counts, seed=len(swept))
        before = made.method.state.network.value
        frozen = state(before.backbone) if before else None
        made.update(data.images, class_names(data))
        assert frozen is None or same(frozen, state(made.method.network.backbone))
    # The head trains on exemplars too, 12 of two classes and 12 of three, none of them swept.
    assert swept == [
        ("features", 15), ("head", 15),
        ("features", 9), ("head", 9 + 12),
        ("features", 4), ("head", 4 + 12),
    ]  # fmt: skip


def test_a_forgotten_class_is_never_the_nearest() -> None:
    method = probe(head="nearest_mean")
    drive(method, task(1, {0: 1, 1: 1, 2: 1}, 0), given(rows((1, 0), (0, 1), (1, 1))))
    forget(method, [0])
    found = score(method, "nearest_mean", rows((1, 0)))[0]
    assert found[0] == MASKED
    assert int(found.argmax()) == 2
