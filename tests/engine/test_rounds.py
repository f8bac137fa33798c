"""Phases in turn, and what a snapshot holds of any phase: the optimiser and the phase's own state.

On white images ``MeanTimes(w)`` gives w + b.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import pytest
import torch
from torch import Tensor
from typing_extensions import override

from grace.base.randomness import generator
from grace.engine.journal import Journal
from grace.engine.phase import Batch, Loss, LossGradients, Part, Phase, Rounds, Work
from grace.engine.progress import Observer
from grace.engine.trainer import Trainer
from grace.methods.classification import classification
from grace.nn.heads import LinearHead
from grace.nn.resnets import CifarResNet
from grace.settings.recipe import Recipe
from support.hand_worked import Killed, MeanTimes, Shelf, phase, recipe, trainer, value_of
from support.tiny_streams import labelled, same, state

ADAMW = recipe(
    epochs=4, batch_size=8, lr=0.01, optimiser="adamw", weight_decay=0.1, clip_norm=1.0,
    warmup_epochs=2, schedule="cosine", min_lr=1e-3,
)  # fmt: skip


@final
class Following(Observer):
    """Notes what it hears; kills once an epoch is over."""

    def __init__(self, name: str = "", epoch: int = 0) -> None:
        self.heard: list[Any] = []
        self._killing = (name, epoch)

    @override
    def work_started(self, work: Work) -> None:
        self.heard.append(f"{work.name} starts")

    @override
    def epoch_finished(self, phase: Phase, epoch: int, losses: Mapping[str, float]) -> None:
        self.heard.append((phase.name, epoch))
        if (phase.name, epoch) == self._killing:
            raise Killed

    @override
    def work_finished(self, work: Work, result: Any) -> None:
        self.heard.append(f"{work.name} ends")


class TestRounds:
    def rounds(self, epochs: int = 3) -> tuple[MeanTimes, MeanTimes, Rounds]:
        """One phase trains f, the other g over a copy of f."""
        one, two = MeanTimes(2.0), MeanTimes(1.0)
        chosen = recipe(epochs=epochs, momentum=0.5)
        first = phase({"f": Part(one, trains=["value"])}, name="first", recipe=chosen)
        second = phase(
            {"old": Part(one, trains=False), "f": Part(two, ["old"], trains=["value"])},
            name="second",
            recipe=chosen,
        )
        return one, two, Rounds(name="both", phases=[first, second])

    def test_an_epoch_of_each_with_momenta_that_stay(self) -> None:
        one, two, rounds = self.rounds()
        made, following = trainer(), Following()
        made.observers.append(following)
        results = made.run(rounds)
        turns = [(name, epoch) for epoch in (1, 2, 3) for name in ("first", "second")]
        assert following.heard == ["both starts", *turns, "both ends"]
        # f: w ← w − 0.1·v with v ← 0.5·v + w. g sees the w of its own epoch: gradient of ½(uw)².
        w, u, speed_w, speed_u = 2.0, 1.0, 0.0, 0.0
        for _ in range(3):
            losses = [0.5 * w * w]
            speed_w = 0.5 * speed_w + w
            w -= 0.1 * speed_w
            losses.append(0.5 * (u * w) ** 2)
            speed_u = 0.5 * speed_u + u * w * w
            u -= 0.1 * speed_u
        assert (value_of(one), value_of(two)) == pytest.approx((w, u), rel=1e-5)
        assert [result.losses["squares"] for result in results] == pytest.approx(losses, rel=1e-5)


def resnet_rounds(epochs: int) -> Rounds:
    """A backbone and its head train together; then the head alone with a rule of its own."""
    backbone = CifarResNet(8, 3, generator(5, "backbone"))
    head = LinearHead(64, 2, generator(5, "head"))
    data = labelled({0: 10, 1: 9})
    first = Phase(
        name="whole",
        parts={"backbone": Part(backbone), "head": Part(head, ["backbone"])},
        objective=classification,
        recipe=Recipe.model_validate({**ADAMW.model_dump(), "epochs": epochs}),
        data=data,
    )
    second = Phase(
        name="head",
        parts={"backbone": Part(backbone, trains=False), "head": Part(head, ["backbone"])},
        objective=noisy,
        recipe=recipe(epochs=epochs, batch_size=8, lr=0.05, momentum=0.9),
        data=data,
        rule=smoothed("head"),
        state={"speed": torch.zeros(2, 64)},
    )
    return Rounds(name="both", phases=[first, second])


def noisy(batch: Batch) -> dict[str, Loss]:
    """Cross-entropy, with a draw that depends on the epoch."""
    scale = 1 + 0.1 * torch.rand((), generator=batch.generator)
    return {"classification": Loss(classification(batch)["classification"].value * scale)}


def smoothed(part: str) -> Callable[[LossGradients], Mapping[str, Tensor]]:
    """A rule that follows the mean of the gradients so far."""

    def rule(gradients: LossGradients) -> Mapping[str, Tensor]:
        name = f"{part}.weight"
        speed = gradients.state["speed"]
        speed.mul_(0.7).add_(gradients.of(["classification"], [name])[name], alpha=0.3)
        return {name: speed.clone()}

    return rule


def adamw_phase(optimiser: str = "adamw") -> Phase:
    """A phase with all that a snapshot has to hold."""
    backbone = CifarResNet(8, 3, generator(5, "backbone"))
    head = LinearHead(64, 2, generator(5, "head"))
    return Phase(
        name="whole",
        parts={"backbone": Part(backbone), "head": Part(head, ["backbone"])},
        objective=noisy,
        recipe=Recipe.model_validate({**ADAMW.model_dump(), "optimiser": optimiser}),
        data=labelled({0: 10, 1: 9}),
        rule=smoothed("head"),
        state={"speed": torch.zeros(2, 64)},
    )


def states(work: Phase | Rounds) -> list[dict[str, Tensor]]:
    """All that a piece of work may have changed."""
    found = []
    for own in work.phases:
        found += [state(part.module) for part in own.parts.values()]
        found.append({name: tensor.clone() for name, tensor in own.state.items()})
    return found


def all_same(one: Phase | Rounds, two: Phase | Rounds) -> bool:
    pairs = zip(states(one), states(two), strict=True)
    return all(same(own, other) for own, other in pairs)


def made(kind: str) -> Phase | Rounds:
    if kind == "rounds":
        return resnet_rounds(4)
    return averaged(adamw_phase()) if kind == "averaged" else adamw_phase(kind)


def averaged(phase: Phase) -> Phase:
    """A phase that ends with the mean of its last three epochs."""
    return replace(phase, recipe=phase.recipe.model_copy(update={"average_epochs": 3}))


class TestSnapshots:
    @pytest.mark.parametrize("epoch", [1, 3])
    @pytest.mark.parametrize("kind", ["adamw", "sgd", "averaged", "rounds"])
    def test_work_goes_on_from_one_with_the_same_bits(self, kind: str, epoch: int) -> None:
        straight, shelf = made(kind), Shelf(epoch)
        result = trainer().run(straight, shelf)
        assert shelf.snapshot is not None
        resumed, following = made(kind), Following()
        again = trainer()
        again.observers.append(following)
        assert again.run(resumed, Shelf(snapshot=shelf.snapshot)) == result
        torch.testing.assert_close(states(straight), states(resumed), rtol=0, atol=0)
        done = [heard for heard in following.heard if isinstance(heard, tuple)]
        assert {number for _, number in done} == set(range(epoch + 1, 5))
        assert not all_same(straight, made(kind))

    @pytest.mark.parametrize(
        ("kind", "name"),
        [("adamw", "whole"), ("averaged", "whole"), ("rounds", "whole"), ("rounds", "head")],
    )
    def test_work_that_was_killed_goes_on_from_its_file(
        self, kind: str, name: str, tmp_path: Path
    ) -> None:
        """Killed in the third round, before or after the first of its phases is done."""
        straight = made(kind)
        result = trainer().run(straight)
        killed = trainer()
        killed.observers.append(Following(name, 3))
        with pytest.raises(Killed):
            Journal(tmp_path, 0.0, 0.0).perform(1, made(kind), killed)
        resumed, again, following = made(kind), trainer(), Following()
        again.observers.append(following)
        assert Journal(tmp_path, 0.0, 0.0).perform(1, resumed, again) == result
        torch.testing.assert_close(states(straight), states(resumed), rtol=0, atol=0)
        done = [heard for heard in following.heard if isinstance(heard, tuple)]
        assert {number for _, number in done} == {3, 4}

    @pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
    def test_a_part_that_no_loss_reaches_does_not_keep_work_from_going_on(
        self, optimiser: str
    ) -> None:
        """Such a part has no gradient, and so no momentum."""

        def with_idle() -> Phase:
            own = adamw_phase()
            idle = Part(LinearHead(64, 3, generator(6, "idle")), ["backbone"])
            chosen = own.recipe.model_copy(update={"optimiser": optimiser, "momentum": 0.9})
            return replace(own, parts={**own.parts, "idle": idle}, recipe=chosen)

        straight, shelf = with_idle(), Shelf(2)
        trainer().run(straight, shelf)
        resumed, following = with_idle(), Following()
        again = trainer()
        again.observers.append(following)
        again.run(resumed, Shelf(snapshot=shelf.snapshot))
        assert following.heard[1:-1] == [("whole", 3), ("whole", 4)]
        torch.testing.assert_close(states(straight), states(resumed), rtol=0, atol=0)

    @pytest.mark.parametrize(
        "lost", ["optimiser/exp_avg_sq/", "optimiser/step/", "state/", "mean/"]
    )
    def test_one_that_lacks_something_counts_as_absent(self, lost: str) -> None:
        shelf = Shelf(2)
        straight = made("averaged")
        trainer().run(straight, shelf)
        tensors = shelf.snapshot.tensors
        assert any(name.startswith(lost) for name in tensors)
        kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(lost)}
        object.__setattr__(shelf.snapshot, "tensors", kept)
        resumed, following = made("averaged"), Following()
        again: Trainer = trainer()
        again.observers.append(following)
        again.run(resumed, Shelf(snapshot=shelf.snapshot))
        assert following.heard[1:-1] == [("whole", epoch) for epoch in (1, 2, 3, 4)]
        torch.testing.assert_close(states(straight), states(resumed), rtol=0, atol=0)
