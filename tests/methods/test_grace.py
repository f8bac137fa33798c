"""GRACE against numbers worked by hand from the paper and docs/how-grace-works.md.

``learn`` is driven by hand where what it yields, or what it does with an answer, is in question:
phases then are not carried out, and a sweep's answer is made up.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.data.scenario import Task
from grace.engine.phase import Batch, Phase, Sweep, Work
from grace.methods.der import DER
from grace.methods.grace import Grace
from grace.methods.method import Outcome
from grace.nn.capacity import FeatureMoments
from grace.nn.expandable import ExpandableNetwork
from grace.nn.heads import LinearHead
from grace.settings.experiment import MemorySettings
from support import driven
from support.driven import Answer, backbones_of, batch, head_of, module_of
from support.tiny_streams import learner, recipe, state, task
from support.typed import typed

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def grace(memory_size: int = 0, **choices: Any) -> Grace:
    """A fresh method; without memory unless asked, so that only phases and Assess are yielded."""
    recipes = {"base": recipe(), "grow": recipe(), "compress": recipe()}
    return typed(
        Grace,
        learner(
            Grace.Settings(**(recipes | choices)), memory=MemorySettings(size=memory_size)
        ).method,
    )


def drive(
    method: Grace | DER, work: Task, answer: Answer | None = None
) -> tuple[Outcome, list[Any]]:
    """Carry ``learn`` through without training; return its outcome and what it yielded."""

    def answered(item: Work) -> Any:
        result = answer(item) if answer else None
        return 0.5 if result is None and item.name == "assess" else result

    return driven.drive(method, work, answered)


def made_up(item: Work) -> Any:
    return 0.5 if item.name == "assess" else driven.made_up(item)


def saturations(values: Sequence[float]) -> Answer:
    """Answer the n-th Assess with the n-th value."""
    left = list(values)

    def answer(item: Work) -> float | None:
        return left.pop(0) if item.name == "assess" else None

    return answer


def stream(*sizes: int, images: int = 4) -> list[Task]:
    """Tasks of so many new classes each."""
    tasks, num_old = [], 0
    for number, size in enumerate(sizes, start=1):
        counts = dict.fromkeys(range(num_old, num_old + size), images)
        tasks.append(task(number, counts, num_old))
        num_old += size
    return tasks


def phase_named(items: Sequence[Phase | Sweep], name: str) -> Phase:
    found = [item for item in items if item.name == name]
    assert len(found) == 1
    assert isinstance(found[0], Phase)
    return found[0]


class TestVerdicts:
    def test_a_relative_threshold_compares_with_the_first_saturation_of_the_backbone(self) -> None:
        method = grace(relative_threshold=1.2, threshold_decay=1)
        drive(method, stream(2, 2, 2, 2, 2, 2)[0])
        answer = saturations([0.3, 0.35, 0.36, 0.2, 0.23])
        outcomes = [drive(method, work, answer)[0] for work in stream(2, 2, 2, 2, 2, 2)[1:]]
        # 0.3 and 0.2 are compared with nothing; 1.2 times 0.3 is 0.36.
        verdicts = " ".join(outcome.verdict for outcome in outcomes)
        assert verdicts == "compress compress grow compress compress"
        thresholds = [outcome.threshold for outcome in outcomes]
        assert thresholds == pytest.approx([1, 0.36, 0.36, 1, 0.24])
        assert [bool(outcome.reason) for outcome in outcomes] == [True, False, False, True, False]
        assert method.state.collect().values["first_saturation"] == 0.2

    def test_thresholds_by_saturation(self) -> None:
        method = grace(threshold=0.6, threshold_decay=0.9)
        outcomes = [drive(method, stream(2, 2, 2, 2, 2, 2)[0])[0]]
        # 0.6; 0.6·0.9 = 0.54; 0.6·0.81 = 0.486: 0.486 is not below itself and expands; then anew.
        answer = saturations([0.59, 0.5, 0.486, 0.599999, 0.55])
        outcomes += [drive(method, work, answer)[0] for work in stream(2, 2, 2, 2, 2, 2)[1:]]
        verdicts = " ".join(outcome.verdict for outcome in outcomes)
        assert verdicts == "start compress compress grow compress grow"
        assert outcomes[0].threshold is None
        thresholds = [outcome.threshold for outcome in outcomes[1:]]
        assert thresholds == pytest.approx([0.6, 0.54, 0.486, 0.6, 0.54])
        assert [o.saturation for o in outcomes[1:]] == [0.59, 0.5, 0.486, 0.599999, 0.55]
        assert method.threshold.value == 0.6

    def test_class_counts_add_on_merging_and_append_on_expanding(self) -> None:
        method = grace(expand_at=(3, 5))
        history = []
        for work in stream(3, 2, 1, 4, 2, 1):
            drive(method, work)
            history.append(list(method.values.class_counts))
        assert history == [[3], [5], [5, 1], [5, 5], [5, 5, 2], [5, 5, 3]]

    def test_a_refresh_moves_neither_threshold_nor_counts(self) -> None:
        method = grace(threshold=1.0, threshold_decay=0.9)
        for work in stream(2, 2):
            drive(method, work)
        outcome, items = drive(method, task(3, {0: 4, 3: 4}, 4))
        assert outcome == Outcome(verdict="refresh", threshold=0.9)
        assert method.values.class_counts == [4]
        assert [item.name for item in items] == ["refresh"]
        outcome, _ = drive(method, task(4, {4: 4}, 4))
        assert outcome.threshold == 0.9


def assessed(sweep: Sweep) -> list[torch.nn.Module]:
    """What is run of a sweep, which reads images alone."""
    assert all(list(part.reads) == ["images"] for part in sweep.parts.values())
    return [part.module for part in sweep.parts.values()]


class TestAssess:
    def sweeps(self, items: Sequence[Phase | Sweep]) -> list[Sweep]:
        found = [item for item in items if isinstance(item, Sweep) and item.name == "assess"]
        assert all(isinstance(item.reducer, FeatureMoments) for item in found)
        return found

    def test_previous_assesses_the_last_backbone_at_the_end_of_the_task_on_augmented_images(
        self,
    ) -> None:
        method = grace(memory_size=6, assess_on="previous", threshold=0.6)
        first, second, third = stream(2, 2, 2)
        items = drive(method, first, saturations([0.7]))[1]
        assert [item.name for item in items] == ["base", "assess", "herd", "class means"]
        (sweep,) = self.sweeps(items)
        assert sweep.augmented
        assert sweep.data.labels.tolist() == [0] * 4 + [1] * 4
        assert assessed(sweep) == [method.network.backbones[0]]
        exemplars = method.memory.data().labels.tolist()

        # Task 2 is decided by 0.7, measured in task 1, whatever its own end will say.
        outcome, items = drive(method, second, saturations([0.1]))
        assert (outcome.verdict, outcome.saturation) == ("grow", 0.7)
        assert [item.name for item in items] == ["grow", "assess", "herd", "class means"]
        (sweep,) = self.sweeps(items)
        # The provisional backbone has become the mergeable one; memory before its update.
        assert assessed(sweep) == [method.network.backbones[1]]
        assert sweep.data.labels.tolist() == [2] * 4 + [3] * 4 + exemplars

        outcome, items = drive(method, third, saturations([0.9]))
        assert (outcome.verdict, outcome.saturation) == ("compress", 0.1)
        names = [item.name for item in items]
        assert names == ["grow", "compress", "assess", "herd", "class means"]
        # After a compression the student is assessed.
        assert assessed(self.sweeps(items)[0]) == [method.network.backbones[-1]]

    def test_a_refresh_leaves_the_saturation_that_decides_next(self) -> None:
        method = grace(assess_on="previous", threshold=0.6)
        drive(method, stream(2)[0], saturations([0.1]))
        drive(method, task(2, {0: 4}, 2))
        outcome, _ = drive(method, task(3, {2: 4}, 2), saturations([0.65]))
        assert (outcome.verdict, outcome.saturation) == ("compress", 0.1)


class TestMergeWeight:
    @pytest.mark.parametrize(
        ("base", "increment", "images", "memory", "expected"),
        [
            # In small: as B0I10 of CIFAR-100 task 2, P = 1/2 and B = 500/700 = 5/7.
            (2, 2, 5, 4, 0.6414),
            # As B50I10: P = 5/6, B = 500/540 = 25/27; here 25 images and 2 exemplars per class.
            (5, 1, 25, 10, 0.8845),
            # As B0I5: P = 1/2, B = 500/900 = 5/9.
            (2, 2, 5, 8, 0.5307),
        ],
    )
    def test_as_in_the_published_protocols(
        self, base: int, increment: int, images: int, memory: int, expected: float
    ) -> None:
        method = grace(memory_size=memory, threshold=1.0)
        tasks = stream(base, increment, images=images)
        drive(method, tasks[0])
        assert len(method.memory) == memory
        outcome, _ = drive(method, tasks[1])
        assert outcome.merge_weight == pytest.approx(expected, abs=5e-5)

    def test_counts_floor_and_known_images_are_old(self) -> None:
        method = grace(memory_size=9, threshold=1.0, gamma=1.0)
        drive(method, stream(2, images=6)[0])
        assert len(method.memory) == 8
        # Two new classes with 5 and 4 images: n_new = 9 // 2 = 4; the three images of class 0 do
        # not count. n_old = 8 // 2 = 4. P = 2/4, B = 4/8, and with γ = 1 their mean.
        outcome, _ = drive(method, task(2, {0: 3, 2: 5, 3: 4}, 2))
        assert outcome.merge_weight == pytest.approx(0.5)
        # The memory is now 2 of each of 4 classes; merged counts are 4: P = 4/5, B = 6/(6+2).
        outcome, _ = drive(method, task(3, {4: 6}, 4))
        assert outcome.merge_weight == pytest.approx((0.8 + 0.75) / 2)

    def test_after_an_expansion_only_the_mergeable_ones_classes_count(self) -> None:
        method = grace(expand_at=(2,), gamma=1.0)
        for work in stream(4, 1):
            drive(method, work)
        outcome, _ = drive(method, task(3, {5: 4, 6: 4, 7: 4}, 5))
        # P = 1/(1 + 3); without exemplars B = 1.
        assert outcome.merge_weight == pytest.approx((0.25 + 1) / 2)


class TestStudent:
    def compressed(
        self, **choices: Any
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor], float | None, Phase]:
        """Mergeable, provisional and student at the start of Compress in task 2."""
        method = grace(**({"threshold": 1.0} | choices))
        first, second = stream(3, 1)
        drive(method, first)
        scatter(method.network.backbones[-1], 1)
        mergeable = state(method.network.backbones[-1])
        seen: dict[str, dict[str, Tensor]] = {}

        def answer(item: Work) -> None:
            if item.name == "grow":
                (provisional,) = backbones_of(item, training=True)
                scatter(provisional, 2)
                seen["provisional"] = state(provisional)
            if item.name == "compress":
                (student,) = backbones_of(item, training=True)
                seen["student"] = state(student)

        outcome, items = drive(method, second, answer)
        phase = phase_named(items, "compress")
        return mergeable, seen["provisional"], seen["student"], outcome.merge_weight, phase

    @pytest.mark.parametrize(
        ("initialisation", "weight"),
        [("average", 0.5), ("merge", 1.0), ("provisional", 0.0), ("importance", None)],
    )
    def test_parameters_are_the_weighted_mean(
        self, initialisation: str, weight: float | None
    ) -> None:
        mergeable, provisional, student, recorded, _ = self.compressed(
            initialisation=initialisation
        )
        if weight is None:
            # P = 3/4; without exemplars B = 1.
            weight = ((0.75**5 + 1) / 2) ** 0.2
        assert recorded == pytest.approx(weight)
        for name in parameters_of(student):
            expected = weight * mergeable[name] + (1 - weight) * provisional[name]
            torch.testing.assert_close(student[name], expected)

    @pytest.mark.parametrize("initialisation", ["importance", "merge", "provisional", "random"])
    def test_batch_norm_statistics_start_afresh(self, initialisation: str) -> None:
        mergeable, _, student, _, _ = self.compressed(initialisation=initialisation)
        statistics = [name for name in student if "running" in name or "num_batches" in name]
        assert len(statistics) == 3 * 7  # ResNet-8 has seven batch norms
        for name in statistics:
            assert bool((student[name] == float("running_var" in name)).all())
        assert bool(mergeable["stem.1.running_mean"].any())

    def test_fixed_backbones_stay_and_the_student_comes_last(self) -> None:
        method = grace(expand_at=(2,))
        for work in stream(2, 2):
            drive(method, work)
        fixed, mergeable = method.network.backbones
        _, items = drive(method, task(3, {4: 4}, 4))
        phase = phase_named(items, "compress")
        frozen = backbones_of(phase, training=False)
        assert frozen[:2] == [fixed, mergeable]
        assert len(frozen) == 3
        assert method.network.backbones[0] is fixed
        assert list(method.network.backbones)[1:] == backbones_of(phase, training=True)
        assert method.network.head is head_of(phase)
        assert method.network.head.weight.shape == (5, 128)


def scatter(module: torch.nn.Module, seed: int) -> None:
    """Give all parameters and statistics some values."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in [*module.parameters(), *module.buffers()]:
            if tensor.is_floating_point():
                tensor.uniform_(0.1, 1.0, generator=draws)


def parameters_of(tensors: Mapping[str, Tensor]) -> list[str]:
    return [name for name in tensors if "running" not in name and "num_batches" not in name]


class TestObjectives:
    def at_compress(self, **choices: Any) -> tuple[Phase, ExpandableNetwork, Grace]:
        """Compress of the third task (K_old = 4, K = 5) with one fixed backbone."""
        method = grace(expand_at=(2,), **choices)
        for work in stream(2, 2):
            drive(method, work)
        steps, result = method.learn(task(3, {4: 4}, 4)), None
        item = typed(Phase, steps.send(None))
        provisional = module_of(item, "new")
        teacher = ExpandableNetwork([*method.network.backbones, provisional], head_of(item))
        while item.name != "compress":
            result = made_up(item)
            item = steps.send(result)
        assert isinstance(item, Phase)
        return item, teacher, method

    def batch(self, phase: Phase, labels: Sequence[int] = (0, 1, 2, 3, 4, 4)) -> Batch:
        """Random features in place of the backbones' outputs."""
        draws = torch.Generator().manual_seed(0)
        features: dict[str, Tensor] = {}
        for name, part in phase.parts.items():
            if "images" in part.reads:
                features[name] = torch.rand(6, 64, generator=draws)
                features[name].requires_grad_(bool(part.trains))
        return batch(phase, labels, features)

    def test_values_of_the_three_terms(self) -> None:
        phase, teacher, method = self.at_compress(temperature=2.0)
        given = self.batch(phase)
        losses = phase.objective(given)
        head, projection = head_of(phase), head_of(phase, "projection")
        # Written out from paper Eqs. 10 to 12: the student shares the fixed backbone (first),
        # the teacher is [fixed, mergeable, provisional].
        fixed, mergeable, provisional = (given[f"old.{i}"] for i in range(3))
        student = head(torch.cat([fixed, given["student"]], dim=1))
        z = (teacher.head(torch.cat([fixed, mergeable, provisional], dim=1)) / 2).softmax(1)
        q = (student / 2).softmax(1)
        kl = 4 * (z * (z.log() - q.log())).sum() / 6
        errors = projection(given["student"]) - torch.cat([mergeable, provisional], dim=1)
        picked = student.softmax(1)[torch.arange(6), given.labels]
        torch.testing.assert_close(losses["logits"].value, kl)
        torch.testing.assert_close(losses["features"].value, errors.square().sum() / (6 * 128))
        torch.testing.assert_close(losses["classification"].value, -picked.log().mean())
        assert method.settings.temperature == 2.0

    @pytest.mark.parametrize(
        ("off", "expected"),
        [
            # λ = K_old/K = 4/5: α·λ = 0.32, β·λ = 1.28, 1 − λ = 0.2.
            ("", {"classification": 0.2, "logits": 0.32, "features": 1.28}),
            ("logit_distillation", {"classification": 0.2, "features": 1.28}),
            ("feature_distillation", {"classification": 0.2, "logits": 0.32}),
            ("logit_distillation feature_distillation", {"classification": 0.2}),
            ("logit_distillation feature_distillation scale_cross_entropy", {"classification": 1}),
            # Without effect while something is distilled.
            ("logit_distillation scale_cross_entropy", {"classification": 0.2, "features": 1.28}),
        ],
    )
    def test_terms_can_be_left_out(self, off: str, expected: dict[str, float]) -> None:
        phase, _, _ = self.at_compress(**dict.fromkeys(off.split(), False))
        losses = phase.objective(self.batch(phase))
        assert {name: loss.weight for name, loss in losses.items()} == pytest.approx(expected)
        trained = {name for name, part in phase.parts.items() if part.changes}
        extra = {"projection"} if "features" in expected else set()
        assert trained == {"student", "head"} | extra
        # The teacher's head is not computed where nobody asks for its logits.
        assert ("old.head" in phase.parts) == ("logits" in expected)

    def test_refresh_distils_half_and_half(self) -> None:
        method = grace(expand_at=(2,), logit_weight=0.4, feature_weight=1.6)
        for work in stream(2, 2):
            drive(method, work)
        present = list(method.network.backbones)
        phase = phase_named(drive(method, task(3, {1: 4}, 4))[1], "refresh")
        assert backbones_of(phase, training=False) == present
        losses = phase.objective(self.batch(phase, (0, 1, 2, 3, 3, 3)))
        assert {name: loss.weight for name, loss in losses.items()} == {
            "classification": 0.5,
            "logits": pytest.approx(0.2),
            "features": pytest.approx(0.8),
        }
        # The student replaces the mergeable backbone alone, and starts as its copy.
        assert head_of(phase, "projection").weight.shape == (64, 64)
        (student,) = backbones_of(phase, training=True)
        torch.testing.assert_close(state(student), state(present[-1]), rtol=0, atol=0)
        assert student is not present[-1]


def mean_length(rows: Tensor) -> float:
    return float(rows.detach().norm(dim=1).mean())


class TestAlignment:
    def test_the_teacher_is_aligned_before_it_teaches(self) -> None:
        method = grace(threshold=1.0)
        first, second = stream(3, 2)
        drive(method, first)
        lengths: dict[str, tuple[float, float]] = {}
        heads: list[LinearHead] = []

        def answer(item: Work) -> None:
            stretch(item)
            if item.name == "grow":
                heads.append(head_of(item))
            if heads:
                weight = heads[0].weight
                lengths[item.name] = (mean_length(weight[:3]), mean_length(weight[3:]))

        drive(method, second, answer)
        old, new = lengths["grow"]
        assert new > 2 * old
        for name in ("assess", "compress"):
            old, new = lengths[name]
            assert new == pytest.approx(old, rel=1e-6)


def stretch(item: Work) -> None:
    """As training would: make the newest two rows of the main head long."""
    if isinstance(item, Phase) and item.name != "base":
        with torch.no_grad():
            head_of(item).weight[-2:] *= 4


class TestDER:
    def test_one_backbone_per_task_and_auxiliary_targets(self) -> None:
        made = typed(
            DER,
            learner(
                DER.Settings(base=recipe(), grow=recipe()), memory=MemorySettings(size=0)
            ).method,
        )
        for number, work in enumerate(stream(2, 2, 1), start=1):
            outcome, items = drive(made, work)
            assert len(made.network.backbones) == number
            assert made.network.head.weight.shape == (work.num_classes, 64 * number)
            assert outcome.verdict == ("start" if number == 1 else "grow")
        phase = phase_named(items, "grow")
        assert len(backbones_of(phase, training=False)) == 2
        auxiliary = head_of(phase, "auxiliary")
        # d → K_new + 1, and targets 0 for old classes, 1 for the only new one.
        assert auxiliary.weight.shape == (2, 64)
        features = [torch.rand(5, 64) for _ in range(3)]
        outputs = dict(zip(("old.0", "old.1", "new"), features, strict=True))
        given = batch(phase, torch.arange(5), outputs)
        predicted = auxiliary(features[2]).softmax(1)[range(5), [0, 0, 0, 0, 1]]
        torch.testing.assert_close(
            phase.objective(given)["auxiliary"].value, -predicted.log().mean()
        )
