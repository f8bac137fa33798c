"""CREATE: what each phase trains, on what, with which loss; ``learn`` is driven, or small."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.data.scenario import Task
from grace.engine.phase import Batch, Phase, Sweep
from grace.learner.learner import Learner
from grace.methods.create import Create
from grace.methods.planning import Coming
from grace.nn.heads import MASKED
from grace.settings.experiment import MemorySettings
from support.driven import batch, drive, forget, module_of
from support.tiny_streams import labelled, learn, learner, recipe, state, task, watch
from support.typed import typed

pytestmark = pytest.mark.usefixtures("tiny_backbones")

SHORT = {"base": recipe(), "update": recipe(), "balance": recipe(2)}


def taught(*tasks: Mapping[int, int], size: int = 13, **choices: Any) -> Learner:
    made = learner(Create.Settings(**SHORT, **choices), memory=MemorySettings(size=size))
    for counts in tasks:
        learn(made, counts)
    return made


def method(size: int = 13, **choices: Any) -> Create:
    return typed(Create, taught(size=size, **choices).method)


def phases(made: Create, work: Task) -> list[Phase]:
    return [item for item in drive(made, work)[1] if isinstance(item, Phase)]


def batch_of(
    phase: Phase, labels: list[int], scores: list[list[float]], **outputs: Tensor
) -> Batch:
    """A batch whose head gives these scores, of features that are all 0 unless given."""
    features = {"backbone.0": torch.zeros(len(labels), 64)}
    return batch(phase, labels, {**features, "head": torch.tensor(scores), **outputs})


class TestLosses:
    def test_the_first_task_by_hand(self) -> None:
        (phase,) = phases(method(contrast_weight=0.6), task(1, {0: 4, 1: 4}, 0))
        # σ(ln 3, 0) = (3/4, 1/4), which both images get.
        found = dict(phase.objective(batch_of(phase, [0, 1], [[math.log(3), 0.0]] * 2)))
        assert list(found) == ["classification", "contrast"]
        expected = -(math.log(3 / 4) + math.log(1 / 4)) / 2
        assert float(found["classification"].value) == pytest.approx(expected, abs=1e-6)
        assert (found["classification"].weight, found["classification"].over) == (1.0, "images")
        assert (found["contrast"].weight, found["contrast"].over) == (0.6, "batch")
        # Each image is alone in its class.
        assert float(found["contrast"].value) == 0.0

    def test_the_contrast_by_hand(self) -> None:
        """All features are 0, so all latents too: each of the other images is as near."""
        (phase,) = phases(method(), task(1, {0: 4, 1: 4}, 0))
        scores = [[-1.0, -3.0]] * 4
        found = phase.objective(batch_of(phase, [0, 0, 0, 1], scores))
        # −log(1/3) for three images, of four; two classes; s = 1, so ω = 1 + e^−4; τ/τ_b = 10/7.
        expected = 3 * math.log(3) / 4 / 2 * (1 + math.exp(-4)) * 10 / 7
        assert float(found["contrast"].value) == pytest.approx(expected, abs=1e-6)

    def test_old_scores_are_distilled_with_the_square_of_the_temperature(self) -> None:
        made = method(distillation_weight=0.5, temperature=3.0)
        drive(made, task(1, {0: 4, 1: 4}, 0))
        update, balance = phases(made, task(2, {2: 4}, 2))
        for phase in (update, balance):
            # T = 3: the teacher says (3, 1)/4, the student (4, 1)/5; the new class does not count.
            found = phase.objective(
                batch_of(
                    phase,
                    [0, 2],
                    [[3 * math.log(4), 0.0, 7.0]] * 2,
                    **{"old.head": torch.tensor([[3 * math.log(3), 0.0]] * 2)},
                )
            )
            assert found.keys() == {"classification", "contrast", "distillation"}
            expected = -(3 / 4 * math.log(4 / 5) + 1 / 4 * math.log(1 / 5))
            assert float(found["distillation"].value) == pytest.approx(expected, abs=1e-6)
            assert found["distillation"].weight == 0.5 * 9

    def test_forgotten_classes_do_not_count(self) -> None:
        made = method(size=12)
        drive(made, task(1, {0: 4, 1: 4, 2: 4}, 0))
        forget(made, [1])
        work = Task(
            number=2, data=labelled({3: 4}), new_classes=range(3, 4), forgotten=frozenset([1])
        )
        update, _ = phases(made, work)
        assert module_of(update, "head").masked == (1,)
        scores = [[-1.0, MASKED, -2.0, -5.0]] * 3
        old = {"old.head": torch.tensor([[-1.0, MASKED, -2.0]] * 3)}
        found = update.objective(batch_of(update, [0, 0, 3], scores, **old))
        # s = 1/4, not 1/9999; two images of three, each with one other beside it; K = 3.
        expected = 2 * math.log(2) / 3 / 3 * (1 + math.exp(-1)) * 10 / 7
        assert float(found["contrast"].value) == pytest.approx(expected, abs=1e-6)
        own = -math.log(1 / (1 + math.exp(-1) + math.exp(-4)))
        last = own + 4
        assert float(found["classification"].value) == pytest.approx((2 * own + last) / 3, abs=1e-5)
        # The student repeats the teacher: what is left is the entropy of σ(−½, −1).
        p = 1 / (1 + math.exp(-0.5))
        entropy = -(p * math.log(p) + (1 - p) * math.log(1 - p))
        assert float(found["distillation"].value) == pytest.approx(entropy, abs=1e-6)


class TestPhases:
    def test_the_balanced_stage_has_as_many_images_of_each_class(self) -> None:
        made = method(size=6)
        drive(made, task(1, {0: 8, 1: 8}, 0))
        _, items = drive(made, task(2, {2: 8, 3: 2}, 2))
        names = [item.name for item in items]
        assert names == ["update", "choose", "balance", "herd", "class means"]
        choose, balance = items[1], items[2]
        # With the features of the network that update has left.
        assert isinstance(choose, Sweep)
        assert module_of(choose, "0") is made.network.backbone
        assert choose.data.labels.tolist() == [2] * 8 + [3] * 2
        # 6 // 2 exemplars of each old class, and 3 // 1 of class 2; class 3 has two.
        assert balance.data.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 2

    @pytest.mark.parametrize("mode", ["train", "eval"])
    def test_the_balanced_stage_moves_statistics_of_the_backbone_at_most(self, mode: str) -> None:
        made = taught({0: 8, 1: 8}, balance_batch_norm=mode)
        before: dict[str, dict[str, Tensor]] = {}
        after: dict[str, dict[str, Tensor]] = {}

        def note(into: dict[str, dict[str, Tensor]], item: Any) -> None:
            if isinstance(item, Phase) and item.name == "balance":
                into.update({name: state(part.module) for name, part in item.parts.items()})

        watch(made, lambda item: note(before, item), lambda item, _: note(after, item))
        learn(made, {2: 8, 3: 8})
        moved = {
            part: {
                name.rpartition(".")[2]
                for name, tensor in before[part].items()
                if not torch.equal(tensor, after[part][name])
            }
            for part in before
        }
        statistics = {"running_mean", "running_var", "num_batches_tracked"}
        assert moved == {
            "old.0": set(),
            "old.head": set(),
            "backbone.0": statistics if mode == "train" else set(),
            "head": {"encoders", "decoders"},
        }
        # Of all classes, the old ones too.
        for name, tensor in before["head"].items():
            assert bool((tensor != after["head"][name]).flatten(1).any(dim=1).all())


class TestPlan:
    def coming(self, made: Create, num_new: int, num_images: int, num_kept: int) -> Coming:
        return Coming(
            is_first=False,
            num_new=num_new,
            num_images=num_images,
            num_kept=num_kept,
            num_seen=16,
            num_backbones=1,
        )

    def test_it_counts_the_images_that_the_phases_have(self) -> None:
        made = taught({0: 8, 1: 8})
        chosen = typed(Create, made.method)
        plan = chosen.plan(self.coming(chosen, 2, 16, len(chosen.memory)))
        work = [done for done in learn(made, {2: 8, 3: 8}).work if done.epochs]
        assert [(p.name, p.epochs, p.num_images) for p in plan] == [
            (done.name, done.epochs, done.images) for done in work
        ]
        # The old network beside the training one; both without training in the balanced stage.
        assert [(p.trained, p.frozen) for p in plan] == [(1, 1), (0, 2)]


def test_half_precision_gives_finite_losses() -> None:
    (phase,) = phases(method(), task(1, {0: 4, 1: 4}, 0))
    features = 30 * torch.rand(4, 64)
    head = module_of(phase, "head")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        given = batch_of(phase, [0, 0, 1, 1], head(features).tolist(), **{"backbone.0": features})
        found = phase.objective(given)
    assert all(loss.value.dtype == torch.float32 for loss in found.values())
    assert all(math.isfinite(float(loss.value)) for loss in found.values())
