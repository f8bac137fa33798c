"""BEEF against numbers worked by hand; objectives are called on modules whose logits are known."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.base.randomness import generator
from grace.data.scenario import Task
from grace.engine.journal import start_of
from grace.engine.phase import Batch, Loss, Mode, Phase
from grace.learner.learner import Learner
from grace.methods.beef import Beef, Fusion, energy_samples
from grace.methods.method import Steps
from grace.methods.outcome import Outcome
from grace.methods.planning import Coming
from grace.nn.heads import MASKED
from support.tiny_streams import labelled, learn, learner, recipe, settings, state, task
from support.typed import typed

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def beef(**choices: Any) -> Beef.Settings:
    return Beef.Settings(**{"base": recipe(), "expand": recipe(), "fuse": recipe()} | choices)


def taught(*tasks: dict[int, int], **choices: Any) -> Learner:
    made = learner(beef(**choices))
    for counts in tasks:
        learn(made, counts)
    return made


def phases(
    made: Learner, work: Task, also: Callable[[Phase], None] = lambda phase: None
) -> list[Phase]:
    """The phases of a task that are not trained; ``also`` may change their modules."""
    steps: Steps[Outcome] = made.method.later_task(work)
    found = []
    for item in steps:
        assert isinstance(item, Phase)
        also(item)
        found.append(item)
    return found


def even(phase: Phase, **biases: Sequence[float]) -> None:
    """Make heads give their biases whatever the features."""
    with torch.no_grad():
        for name, bias in biases.items():
            module = phase.parts[name].module
            module.get_parameter("weight").zero_()
            module.get_parameter("bias").copy_(torch.tensor(bias))


def losses_of(phase: Phase, labels: Sequence[int], images: Tensor | None = None) -> dict[str, Loss]:
    """The objective of a phase on images that its own modules see."""
    images = torch.rand(len(labels), 3, 8, 8) if images is None else images

    def run(part: str, *inputs: Tensor, mode: Mode | None = None) -> Any:
        module = phase.parts[part].module.train(mode != "eval")
        return module(*inputs)

    outputs: dict[str, Any] = {}
    for name, part in phase.parts.items():
        read = [images if source == "images" else outputs[source] for source in part.reads]
        outputs[name] = run(name, *read)
    batch = Batch(images, torch.tensor(labels), outputs, call=run)
    found = phase.objective(batch)
    return {name: replace(loss, value=loss.value.detach()) for name, loss in found.items()}


class TestModule:
    def test_the_first_tasks_losses_by_hand(self) -> None:
        made = learner(beef(energy_weight=0.3))
        phase = typed(Phase, next(made.method.first_task(task(1, {0: 4, 1: 4, 2: 4}, 0))))
        assert (phase.name, start_of(phase)) == ("base", None)
        even(
            phase,
            head=[math.log(2), math.log(3), math.log(5)],
            energy=[math.log(4), math.log(6), 0.0],
        )
        losses = losses_of(phase, [1, 0])
        # Classification: 3 and 2 of 10. Energy: outputs of classes 0 and 1, which are there, are 1:
        # (1, 1, 5 | 4, 6, 1), of which class 1 has 6 and class 0 has 4 of 18.
        expected = -(math.log(3 / 10) + math.log(2 / 10)) / 2
        assert float(losses["classification"].value) == pytest.approx(expected, abs=1e-6)
        expected = -(math.log(6 / 18) + math.log(4 / 18)) / 2
        assert float(losses["energy"].value) == pytest.approx(expected, abs=1e-6)
        assert (losses["classification"].weight, losses["energy"].weight) == (1.0, 0.3)

    def test_a_later_tasks_losses_by_hand(self) -> None:
        """Old tasks are one output each, divided by 1.7 in the classification alone."""
        made = taught({0: 4, 1: 4}, {2: 4})
        (phase, _) = phases(made, task(3, {3: 4, 4: 4}, 3))
        assert phase.name == "expand"
        even(
            phase,
            prototypes=[1.7 * math.log(2), 1.7 * math.log(3)],
            classes=[math.log(5), math.log(7)],
            energy=[0.0, 0.0, 0.0, math.log(2), 0.0],
        )
        losses = losses_of(phase, [0, 1, 2, 3])
        # (2, 3, 5, 7) of 17; classes 0 and 1 are output 0, class 2 is output 1, class 3 output 2.
        expected = -sum(math.log(value / 17) for value in (2, 2, 3, 5)) / 4
        assert float(losses["classification"].value) == pytest.approx(expected, abs=1e-6)
        # Outputs 0 to 2 occur: (1, 1, 1, 7 | 1, 1, 1, 2, 1) of 16.
        expected = -(3 * math.log(1 / 16) + math.log(2 / 16)) / 4
        assert float(losses["energy"].value) == pytest.approx(expected, abs=1e-6)
        # Where task 1 has no image its output counts, undivided: 2^1.7 in place of 1.
        losses = losses_of(phase, [2, 3])
        total = 15 + 2**1.7
        expected = -(math.log(1 / total) + math.log(2 / total)) / 2
        assert float(losses["energy"].value) == pytest.approx(expected, abs=1e-6)

    def test_samples_do_not_move_batch_norm(self) -> None:
        """A step runs the images and the final samples in train mode, the three moves in eval."""
        made = taught({0: 8, 1: 8}, {2: 8}, base=recipe(2), expand=recipe(3))
        counts = [
            {int(v) for n, v in state(b).items() if n.endswith("num_batches_tracked")}
            for b in made.method.network.backbones
        ]
        # 16 images are one batch of 16: two passes in each of two epochs. Then 8 images and 12
        # exemplars are two batches: two passes in each of six steps, on top of those of the copy.
        assert counts == [{4}, {4 + 12}]


class TestSamples:
    """One image of two pixels each; the module is linear: outputs 0, energy a·x."""

    SLOPE = (2.0, -1.0)

    def module(self, modes: list[Mode | None]) -> Callable[..., tuple[Tensor, Tensor]]:
        def run(images: Tensor, mode: Mode | None) -> tuple[Tensor, Tensor]:
            modes.append(mode)
            energies = images.flatten(1) @ torch.tensor(self.SLOPE)
            return torch.zeros(len(images), 1), energies[:, None]

        return run

    def test_the_moves_by_hand(self) -> None:
        chosen = beef(energy_steps=2, energy_lr=0.5, energy_noise=0.0)
        images = torch.tensor([[0.3, -0.4], [1.0, 0.2]]).view(2, 1, 1, 2)
        modes: list[Mode | None] = []
        batch = Batch(images, torch.tensor([0, 0]), {})
        found = energy_samples(chosen, batch, self.module(modes))
        # Plain Python: with s = σ(a·x), d/dx log Σ_n s_n = s (1 − s) a / Σ s. Rotated by 180° a row
        # of two pixels is reversed.
        rows = [[-0.4, 0.3], [0.2, 1.0]]
        for _ in range(2):
            mass = [
                1 / (1 + math.exp(-sum(a * x for a, x in zip(self.SLOPE, row, strict=True))))
                for row in rows
            ]
            rows = [
                [
                    x - 0.5 * s * (1 - s) * a / sum(mass)
                    for a, x in zip(self.SLOPE, row, strict=True)
                ]
                for row, s in zip(rows, mass, strict=True)
            ]
        assert found.flatten(1).tolist() == [pytest.approx(row, abs=1e-6) for row in rows]
        assert modes == ["eval", "eval"]
        assert not found.requires_grad
        # The batch itself stays as it is.
        assert images.flatten().tolist() == pytest.approx([0.3, -0.4, 1.0, 0.2])

    def test_the_rotation_is_by_half_a_turn(self) -> None:
        images = torch.arange(4.0).view(1, 1, 2, 2)
        batch = Batch(images, torch.tensor([0]), {})
        found = energy_samples(beef(energy_steps=0), batch, self.module([]))
        assert found.tolist() == [[[[3.0, 2.0], [1.0, 0.0]]]]

    def test_the_noise_is_added_at_every_step(self) -> None:
        chosen = beef(energy_steps=2, energy_lr=0.0, energy_noise=0.1)
        images, draws = torch.zeros(2, 1, 1, 2), generator(3, "noise")
        batch = Batch(images, torch.tensor([0, 0]), {}, generator=generator(3, "noise"))
        found = energy_samples(chosen, batch, self.module([]))
        one, two = (torch.randn(2, 1, 1, 2, generator=draws) for _ in range(2))
        torch.testing.assert_close(found, 0.1 * (one + two))


class TestFusion:
    def test_only_the_corrections_train_on_equally_many_images(self) -> None:
        made = taught({0: 9, 1: 9})
        (_, fuse) = phases(made, task(2, {2: 9, 3: 4}, 2))
        assert fuse.name == "fuse"
        trained = {name: set(part.trained()) for name, part in fuse.parts.items() if part.trains}
        assert trained == {"head": {"alpha", "beta"}}
        assert [name for name, part in fuse.parts.items() if part.changes] == ["head"]
        # 13 // 2 exemplars of each old class, six of the nine of class 2, all four of class 3.
        labels = fuse.data.labels
        assert torch.bincount(labels).tolist() == [6, 6, 6, 4]
        assert fuse.recipe == recipe()

    @pytest.mark.parametrize(("kept", "old_bias"), [("sum", [0.5, -1.0]), ("newest", [0.0, 0.0])])
    def test_the_head_is_what_the_modules_give(self, kept: Any, old_bias: list[float]) -> None:
        made = taught({0: 6, 1: 6}, old_bias=kept)
        old = made.method.network.head
        with torch.no_grad():
            old.bias.copy_(torch.tensor([0.5, -1.0]))
        seen: dict[str, Any] = {}
        features = torch.rand(3, 64), torch.rand(3, 64)

        def change(phase: Phase) -> None:
            seen.update({name: part.module for name, part in phase.parts.items()})
            if phase.name == "fuse":
                fusion = typed(Fusion, seen["head"])
                assert (fusion.alpha.tolist(), fusion.beta.tolist()) == ([0.0], [0.0])
                with torch.no_grad():
                    fusion.alpha.fill_(0.5)
                    fusion.beta.fill_(2.0)
                seen["logits"] = fusion(*features)

        phases(made, task(2, {2: 6}, 2), change)
        network = made.method.network
        weight, bias = network.head.weight, network.head.bias
        prototype, own = (seen[name].requires_grad_(False) for name in ("prototypes", "classes"))
        # Rows: [old row, 1.5·p], and [0, own row] of the new class.
        for index in (0, 1):
            torch.testing.assert_close(weight[index, :64], old.weight[index])
            torch.testing.assert_close(weight[index, 64:], 1.5 * prototype.weight[0])
        assert float(weight[2, :64].abs().max()) == 0.0
        assert torch.equal(weight[2, 64:], own.weight[0])
        expected = [value + 1.5 * float(prototype.bias[0]) + 2 for value in old_bias]
        assert bias.tolist() == pytest.approx([*expected, float(own.bias[0])], abs=1e-6)
        # What the fusion gave, and ready to predict.
        assert torch.equal(weight, seen["head"].rows()[0])
        torch.testing.assert_close(network.head(*features), seen["logits"].detach())
        assert not any(parameter.requires_grad for parameter in network.parameters())


class TestClasses:
    def test_forgotten_classes_count_nowhere(self) -> None:
        made = taught({0: 6, 1: 6}, {2: 6}, {3: 6, 4: 6})
        for index in (1, 2):
            made.method.memory.forget(index)
        made.method.state.forget([1, 2])
        work = Task(
            number=4, data=labelled({5: 6}), new_classes=range(5, 6), forgotten=frozenset([1, 2])
        )
        (expand, fuse) = phases(made, work)
        features = torch.rand(2, 64)
        # Of task 1 class 0 is left, of task 2 nothing.
        prototypes = expand.parts["prototypes"].module(features)
        assert (prototypes == MASKED).tolist() == [[False, True, False]] * 2
        energies = expand.parts["energy"].module(features)
        assert (energies == MASKED).tolist() == [[False, True, True, False, False, False]] * 2
        for head in (fuse.parts["head"].module, made.method.network.head):
            logits = head(*[features] * 4)
            assert (logits == MASKED).tolist() == [[False, True, True, False, False, False]] * 2

    def test_images_of_known_classes_come_under_their_own_task(self) -> None:
        made = taught({0: 4, 1: 4}, {2: 4})
        (phase, _) = phases(made, task(3, {1: 4, 3: 4}, 3))
        even(phase, prototypes=[1.7 * math.log(2), 0.0], classes=[0.0], energy=[0.0] * 4)
        loss = losses_of(phase, [1])["classification"]
        assert float(loss.value) == pytest.approx(-math.log(2 / 4), abs=1e-6)


def test_the_plan_counts_the_steps_of_the_samples() -> None:
    own = {"base": recipe(2), "expand": recipe(3), "fuse": recipe(5)}

    def passes(method: Any) -> list[float]:
        made = Learner.create(settings(method), shape=(3, 8, 8))
        first = Coming(
            is_first=True, num_new=2, num_images=40, num_kept=0, num_seen=0, num_backbones=0
        )
        before = sum(phase.passes for phase in made.method.plan(first))
        learn(made, {0: 20, 1: 20})
        later = Coming(
            is_first=False, num_new=1, num_images=18, num_kept=12, num_seen=40, num_backbones=1
        )
        return [before, sum(phase.passes for phase in made.method.plan(later))]

    # Twice 40 images, each 1 + 1 + 3·2/3 = 4 passes. Then 18 and 12 exemplars; the fusion takes 12
    # and 6 of the new class, beside two frozen backbones.
    assert passes(beef(**own)) == pytest.approx([2 * 40 * 4, 3 * 30 * 4 + 5 * 18 * 2 / 3])
    plain = beef(energy_weight=0.0, **own)
    assert passes(plain) == pytest.approx([2 * 40, 3 * 30 + 5 * 18 * 2 / 3])
