"""Class prior and label smoothing against numbers worked by hand from docs/protocols.md."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from grace.engine.phase import Phase, Sweep
from grace.methods.beef import Beef
from grace.methods.create import Create
from grace.methods.der import DER
from grace.methods.foster import Foster
from grace.methods.grace import Grace
from grace.methods.icarl import ICaRL
from grace.methods.joint import Joint
from grace.methods.memo import Memo
from grace.methods.replay import Replay
from grace.methods.tagfex import TagFex
from grace.methods.wa import WA
from grace.nn.heads import LinearHead
from support.driven import batch, drive, forget, head_of
from support.tiny_streams import learner, task
from support.typed import typed

pytestmark = pytest.mark.usefixtures("tiny_backbones")

LINEAR = [
    Grace.Settings,
    DER.Settings,
    Foster.Settings,
    Memo.Settings,
    WA.Settings,
    ICaRL.Settings,
    Replay.Settings,
]
ALIGNING = [Grace.Settings, DER.Settings, Memo.Settings, WA.Settings]
SMOOTHED = [*LINEAR, TagFex.Settings, Joint.Settings]
WIDTHS = {"agnostic": 64, "new": 64, "attention": 64, "predicted": 8, "old.agnostic": 8}
"""Of outputs that are made up, as TagFex's parts would need maps."""


def second_task(settings: Any, **changes: Any) -> tuple[Any, Phase]:
    """Two classes of 4 images, then 4 and 8 of two more; 13 exemplars keep all of the first 8."""
    method = learner(settings(**changes)).method
    drive(method, task(1, {0: 4, 1: 4}, 0))
    phase = typed(Phase, next(method.learn(task(2, {2: 4, 3: 8}, 2))))
    return method, phase


def even(phase: Phase, *heads: str) -> None:
    """All logits become 0."""
    with torch.no_grad():
        for name in heads:
            head_of(phase, name).weight.zero_()
            head_of(phase, name).bias.zero_()


def made_up(phase: Phase) -> dict[str, torch.Tensor]:
    """Outputs of those parts for two images."""
    return {name: torch.rand(2, WIDTHS[name]) for name in phase.parts if name in WIDTHS}


@pytest.mark.parametrize("settings", LINEAR)
@pytest.mark.parametrize(
    ("prior", "smoothing"), [("none", 0.0), ("balanced", 0.0), ("balanced", 0.1)]
)
def test_even_logits_cost_the_share_of_their_class(
    settings: Any, prior: str, smoothing: float
) -> None:
    """p is π = (4, 4, 4, 8)/20, or even; ε·π is added to 1 − ε of the label."""
    _, phase = second_task(settings, class_prior=prior, label_smoothing=smoothing)
    shares = [0.25] * 4 if prior == "none" else [0.2, 0.2, 0.2, 0.4]
    entropy = -sum(share * math.log(share) for share in shares)
    even(phase, *({"head", "features"} & phase.parts.keys()))
    for label in (0, 2, 3):
        losses = phase.objective(batch(phase, [label]))
        expected = -(1 - smoothing) * math.log(shares[label]) + smoothing * entropy
        for name in {"classification", "features"} & losses.keys():
            assert float(losses[name].value.detach()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("settings", ALIGNING)
@pytest.mark.parametrize(
    ("changes", "aligned"),
    [
        ({}, True),
        ({"class_prior": "balanced"}, False),
        ({"weight_alignment": False}, False),
        ({"class_prior": "balanced", "weight_alignment": True}, True),
    ],
)
def test_alignment_gives_way_to_the_prior(
    settings: Any, changes: dict[str, Any], aligned: bool
) -> None:
    method = learner(settings(**changes)).method
    drive(method, task(1, {0: 4, 1: 4}, 0))

    def stretch(item: Any) -> float | None:
        # As if training had made new rows ten times as long as old ones; GRACE then expands.
        if isinstance(item, Sweep) and item.name == "assess":
            return 1.0
        if isinstance(item, Phase):
            with torch.no_grad():
                head_of(item).weight[2:] *= 10
        return None

    drive(method, task(2, {2: 4, 3: 8}, 2), stretch)
    head = typed(LinearHead, method.network.head)
    lengths = head.weight.norm(dim=1)
    assert (float(lengths[2:].mean() / lengths[:2].mean()) < 1.5) == aligned


def test_joint_balances_unequal_classes() -> None:
    method = learner(Joint.Settings(class_prior="balanced")).method
    phase = next(method.learn(task(1, {0: 2, 1: 6}, 0)))
    even(phase, "head")
    loss = phase.objective(batch(phase, [0]))["classification"]
    assert float(loss.value.detach()) == pytest.approx(math.log(4), abs=1e-6)


def test_forgotten_classes_have_no_share() -> None:
    """Classes 1 to 3 have equally many images; the forgotten class 0 must not spoil that."""
    method = learner(Replay.Settings(class_prior="balanced")).method
    drive(method, task(1, {0: 4, 1: 4}, 0))
    forget(method, [0])
    work = replace(task(2, {2: 4, 3: 4}, 2), forgotten=frozenset([0]))
    phase = typed(Phase, next(method.learn(work)))
    assert phase.objective.__qualname__ == "classification"


def test_tagfex_and_create_have_it_too() -> None:
    """An image of class 3, which has 8 of the 20 images, with even scores of all four classes."""
    for settings in (TagFex.Settings, Create.Settings):
        _, phase = second_task(settings, class_prior="balanced")
        outputs = {"head": torch.zeros(2, 4), **made_up(phase)}
        loss = phase.objective(batch(phase, [3, 3], outputs))["classification"]
        value = float(loss.value.detach())
        assert value == pytest.approx(-math.log(8 / 20), abs=1e-6)


def test_an_old_task_is_as_likely_as_its_classes_in_beef() -> None:
    """The old task's 8 images are of two classes: a mean share of 4/20, beside 4/20 and 8/20.

    These do not sum to 1, so even outputs cost −ln(share / 0.8). The alignment is off.
    """
    _, phase = second_task(Beef.Settings, class_prior="balanced", energy_weight=0)
    even(phase, "prototypes", "classes")
    for label, share in ((0, 0.2), (1, 0.2), (2, 0.2), (3, 0.4)):
        loss = phase.objective(batch(phase, [label]))["classification"]
        assert float(loss.value.detach()) == pytest.approx(-math.log(share / 0.8), abs=1e-6)
    with torch.no_grad():
        head_of(phase, "prototypes").bias.fill_(math.log(2))
    loss = phase.objective(batch(phase, [0]))["classification"]
    assert float(loss.value.detach()) == pytest.approx(math.log(2.5), abs=1e-6)


@pytest.mark.parametrize("settings", SMOOTHED)
def test_labels_are_smoothed_in_every_phase_that_classifies(settings: Any) -> None:
    """All classes have 4 images. p_0 is 1/2; the other classes share the rest."""
    method = learner(settings(label_smoothing=0.1)).method
    found = []
    for number, new in ((1, {0: 4, 1: 4}), (2, {2: 4, 3: 4})):
        work = task(number, new, 2 * number - 2)
        _, items = drive(method, work, lambda item: 0.0 if item.name == "assess" else None)
        count = 2 * number
        logits = torch.zeros(2, count)
        logits[:, 0] = math.log(count - 1)
        rest = (count - 1) * 0.1 / count
        expected = (1 - rest) * math.log(2) + rest * math.log(2 * (count - 1))
        for item in (item for item in items if isinstance(item, Phase)):
            outputs = {"head": logits, **made_up(item)}
            losses = item.objective(batch(item, [0, 0], outputs))
            if "classification" in losses:
                found.append(item.name)
                value = float(losses["classification"].value.detach())
                assert value == pytest.approx(expected, abs=1e-6)
    assert len(found) == (3 if settings is Grace.Settings else 2), found


def test_auxiliary_labels_are_not_smoothed() -> None:
    auxiliary = []
    for smoothing in (0.0, 0.3):
        _, phase = second_task(DER.Settings, label_smoothing=smoothing)
        outputs = {"auxiliary": torch.tensor([[2.0, 0.0, 1.0]])}
        auxiliary.append(phase.objective(batch(phase, [3], outputs))["auxiliary"].value)
    assert auxiliary[0] == auxiliary[1]
