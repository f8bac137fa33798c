"""TagFex against numbers worked by hand from its paper; ``learn`` is driven by hand, or small."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from grace.engine import parts as graph
from grace.engine.phase import Batch, Loss, Phase
from grace.learner.learner import Learner
from grace.methods.planning import Coming
from grace.methods.tagfex import TagFex
from grace.nn.attention import TaskAgnostic
from grace.settings.experiment import MemorySettings
from support.driven import batch, drive, forget, module_of
from support.tiny_streams import SIZE, labelled, learn, learner, recipe, settings, state, task
from support.typed import present, typed

pytestmark = pytest.mark.usefixtures("tiny_backbones")

# ResNet-8 by hand: convolutions 432 + 2·2304 + 4608 + 9216 + 18432 + 36864, batch norms of
# 16·3 + 32·2 + 64·2 channels, 2 parameters each.
BACKBONE = 432 + 2 * 2304 + 4608 + 9216 + 18432 + 36864 + 2 * (16 * 3 + 32 * 2 + 64 * 2)
PROBE = labelled(dict.fromkeys(range(3), 3), seed=5).images


def tagfex(**choices: Any) -> TagFex.Settings:
    return TagFex.Settings(base=recipe(), grow=recipe(), **choices)


def method(**choices: Any) -> TagFex:
    return typed(TagFex, learner(tagfex(**choices)).method)


def base_phase(made: TagFex) -> Phase:
    return typed(Phase, next(made.learn(task(1, {0: 4, 1: 4}, 0))))


def grow_phase(made: TagFex, forgotten: frozenset[int] = frozenset()) -> Phase:
    """The phase of a second task of classes 3 and 4, before anything has trained."""
    drive(made, task(1, {0: 4, 1: 4, 2: 4}, 0))
    forget(made, forgotten)
    work = task(2, {3: 4, 4: 4}, 3)
    return typed(Phase, next(made.learn(type(work)(**vars(work) | {"forgotten": forgotten}))))


def agnostic_of(made: TagFex) -> TaskAgnostic:
    return present(made.agnostic.value)


def outputs(phase: Phase, num_images: int) -> dict[str, Any]:
    """What all parts give of random images, autograd as in training."""
    images = torch.rand(num_images, 3, SIZE, SIZE)
    modules = {name: part.module for name, part in phase.parts.items()}
    with torch.no_grad():
        before = {n: p for n, p in phase.parts.items() if n in graph.without_autograd(phase.parts)}
        found = graph.run(before, modules, images)
    after = {name: part for name, part in phase.parts.items() if name not in before}
    return graph.run(after, modules, images, outputs=found)


def reached(phase: Phase, losses: Mapping[str, Loss], *names: str) -> set[str]:
    """The parts whose parameters the gradient of some losses reaches."""
    parameters = graph.named_parameters(phase.parts)
    total = torch.stack([losses[name].value for name in names]).sum()
    found = torch.autograd.grad(
        total, list(parameters.values()), retain_graph=True, allow_unused=True
    )
    gradients = dict(zip(parameters, found, strict=True))
    moved = {name for name, gradient in gradients.items() if gradient is not None}
    return {
        part
        for part in phase.parts
        if any(name in moved for name in graph.named_parameters({part: phase.parts[part]}))
    }


class TestFirstTask:
    def test_the_loss_by_hand(self) -> None:
        phase = base_phase(method(contrastive_weight=3, contrastive_temperature=0.5))
        # As in test_contrastive: ln(1 + 2·e⁻²); and −ln(1/2) of two equal logits.
        views = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
        given = {"projector": views, "head": torch.zeros(4, 2)}
        losses = phase.objective(batch(phase, [0, 0, 1, 1], given))
        assert {n: (loss.weight, loss.over) for n, loss in losses.items()} == {
            "classification": (1.0, "images"),
            "contrast": (3.0, "batch"),
        }
        assert float(losses["contrast"].value) == pytest.approx(0.239545, abs=1e-6)
        assert float(losses["classification"].value) == pytest.approx(math.log(2))

    def test_heads_that_do_not_fit_are_refused_before_anything_is_learnt(self) -> None:
        with pytest.raises(ValueError, match=r"3 attention heads .* 64 channels"):
            base_phase(method(attention_heads=3))


class TestGrow:
    def test_the_new_backbone_is_mostly_the_last_one(self) -> None:
        made = method()
        phase = grow_phase(made)
        last, agnostic = state(made.network.backbones[-1]), state(agnostic_of(made).backbone)
        new = {
            name.removeprefix("backbone."): value
            for name, value in state(module_of(phase, "new.both")).items()
        }
        for name, parameter in made.network.backbones[-1].named_parameters():
            expected = 0.95 * last[name].double() + 0.05 * agnostic[name].double()
            torch.testing.assert_close(new[name].double(), expected, rtol=0, atol=1e-7)
            assert parameter.dim() == 1 or not torch.equal(last[name], agnostic[name])
        means = [value for name, value in new.items() if name.endswith("running_mean")]
        variances = [value for name, value in new.items() if name.endswith("running_var")]
        assert means
        assert not any(bool(mean.any()) for mean in means)
        assert all(bool((variance == 1).all()) for variance in variances)

    @pytest.mark.parametrize(
        # κ = K_old/K = 3/5; with one old class forgotten 2/4.
        ("forgotten", "kappa"),
        [(frozenset(), 0.6), (frozenset({1}), 0.5)],
    )
    def test_the_loss_by_hand(self, forgotten: frozenset[int], kappa: float) -> None:
        chosen = {"auxiliary_weight": 3, "contrastive_weight": 5, "retention_weight": 7}
        made = method(merged_weight=11, transfer_weight=13, contrastive_temperature=0.5, **chosen)
        phase = grow_phase(made, forgotten)
        views = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
        predicted = torch.tensor([[1.0, 0.0]]).expand(4, 2)
        before = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
        given = {
            "projector": views,
            "predicted": predicted,
            "old.agnostic": before,
            "head": torch.zeros(4, 5),
            "auxiliary": torch.tensor([math.log(3), 0.0, 0.0]).expand(4, 3),
            "merged": torch.tensor([2 * math.log(3), 0.0]).expand(4, 2),
            "agnostic.both": (torch.rand(4, 64), torch.rand(4, 64, 2, 2)),
            "new.both": (torch.rand(4, 64), torch.rand(4, 64, 2, 2)),
        }
        losses = phase.objective(batch(phase, [0, 0, 3, 3], given))
        assert {n: (loss.weight, loss.over) for n, loss in losses.items()} == {
            "classification": (1.0, "images"),
            "auxiliary": (3.0, "images"),
            "contrast": (pytest.approx(5 * (1 - kappa)), "batch"),
            "retention": (pytest.approx(7 * kappa), "batch"),
            "merged": (11.0, "batch"),
            "transfer": (13.0, "batch"),
        }
        # Retention, at τ = ½: all anchors have cosines 1, 0, −1 and 0 with the four candidates, of
        # which each leaves out its own and has to find its partner: 1, 0, 3 and 2. The other way
        # round all would be alike, ln 3.
        up, down = math.exp(2), math.exp(-2)
        shares = (
            1 / (1 + down + 1),
            up / (up + down + 1),
            1 / (up + 1 + 1),
            down / (up + 1 + down),
        )
        retention = -sum(math.log(share) for share in shares) / 4
        expected = {
            "classification": math.log(5),
            # −ln(3/5) for the old class, −ln(1/5) for the new one.
            "auxiliary": -(math.log(3 / 5) + math.log(1 / 5)) / 2,
            "contrast": 0.239545,
            "retention": retention,
            # −ln(9/10), of the new class's rows alone.
            "merged": -math.log(0.9),
            # Of (3/4, 1/4) against (1/2, 1/2), as in test_transfer: the guide is the better one.
            "transfer": 0.130812,
        }
        found = {name: float(loss.value) for name, loss in losses.items()}
        assert found == pytest.approx(expected, abs=1e-5)

    def test_a_batch_without_a_new_class_is_finite_and_teaches_neither_merged_nor_transfer(
        self,
    ) -> None:
        phase = grow_phase(method())
        with graph.only_training(phase.parts):
            given = outputs(phase, 4)
            losses = phase.objective(Batch(torch.zeros(4), torch.tensor([0, 0, 2, 2]), given))
            values = {name: float(loss.value.detach()) for name, loss in losses.items()}
            assert values["merged"] == values["transfer"] == 0.0
            total = torch.stack([loss.value for loss in losses.values()]).sum()
            gradients = torch.autograd.grad(
                total, list(graph.named_parameters(phase.parts).values()), allow_unused=True
            )
        assert math.isfinite(float(total.detach()))
        assert all(bool(g.isfinite().all()) for g in gradients if g is not None)

    def test_where_each_loss_reaches(self) -> None:
        """Labels never reach the agnostic network, and the transfer never reaches its guide."""
        made = method(old_rows="random")
        phase = grow_phase(made)
        with torch.no_grad():  # A guide that is surely the better one.
            module_of(phase, "merged").weight.zero_()
            module_of(phase, "merged").bias.copy_(torch.tensor([9.0, 0.0]))
        with graph.only_training(phase.parts):
            given = outputs(phase, 8)
            labels = torch.tensor([0, 0, 1, 1, 3, 3, 3, 3])
            losses = phase.objective(Batch(torch.zeros(8), labels, given))
            assert float(losses["transfer"].value.detach()) > 0
            supervised = ("classification", "auxiliary", "merged", "transfer")
            assert "agnostic.both" not in reached(phase, losses, *supervised)
            assert reached(phase, losses, "merged") == {"new.both", "attention", "merged"}
            assert reached(phase, losses, "transfer") == {"new.both", "head"}
            assert reached(phase, losses, "contrast") == {"agnostic.both", "projector"}
            assert reached(phase, losses, "retention") == {"agnostic.both", "predicted"}


def test_it_is_no_part_of_the_predictor_but_of_what_is_saved(tmp_path: Path) -> None:
    """#P is T backbones; the file of the agnostic network counts among the bytes."""
    chosen = settings(tagfex(projector_width=24, embedding_width=8), memory=MemorySettings(size=20))
    made = Learner.create(chosen, shape=(3, SIZE, SIZE), directory=tmp_path / "home")
    for number, counts in enumerate(({0: 9, 1: 9}, {2: 9}, {3: 9}), start=1):
        learn(made, counts)
        assert made.method.network.num_parameters().backbones == number * BACKBONE
        assert set(made.method.classifiers()) == {"linear", "nearest_mean"}
    parts = made.method.state.collect().parts
    numbers = {name: sum(t.numel() for t in part.values()) for name, part in parts.items()}
    # Running mean, variance and a count for each of 7 batch norms; d → h → o, and d → d.
    buffers = 2 * (16 * 3 + 32 * 2 + 64 * 2) + 7
    small = (64 * 24 + 24) + (24 * 8 + 8) + (64 * 64 + 64)
    assert numbers["agnostic"] == BACKBONE + buffers + small
    assert numbers["backbone.2"] == BACKBONE + buffers
    again = Learner.load(tmp_path / "home")
    assert isinstance(again.method, TagFex)
    assert isinstance(made.method, TagFex)
    torch.testing.assert_close(
        state(agnostic_of(again.method)), state(agnostic_of(made.method)), rtol=0, atol=0
    )
    torch.testing.assert_close(again.scores(PROBE), made.scores(PROBE), rtol=0, atol=0)


def test_the_plan_counts_both_views_of_all_networks() -> None:
    made, facts = method(), {"num_new": 2, "num_images": 30, "num_seen": 0}
    first = Coming(is_first=True, num_kept=0, num_backbones=0, **facts)
    # Two networks, two views.
    assert [(p.name, p.num_images, p.trained, p.frozen) for p in made.plan(first)] == [
        ("base", 30, 4, 0)
    ]
    later = Coming(is_first=False, num_kept=12, num_backbones=3, **facts)
    # Beside them three old backbones and the old agnostic network, two views of each.
    assert [(p.name, p.num_images, p.trained, p.frozen) for p in made.plan(later)] == [
        ("grow", 42, 4, 8)
    ]
