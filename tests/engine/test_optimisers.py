"""Optimisers of a recipe against torch's own loop and numbers worked by hand; gradient rules.

On white images ``MeanTimes(w)`` gives w + b, so that a mean over images has gradient 1 for both.
"""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grace.base.randomness import generator
from grace.engine.phase import Batch, Loss, LossGradients, Part
from grace.methods.classification import classification
from grace.nn.heads import LinearHead
from grace.settings.recipe import Recipe
from support.hand_worked import MeanTimes, phase, recipe, trainer, value_of, white
from support.tiny_streams import labelled, same, state

DATA = labelled({0: 7, 1: 6, 2: 8})


def rising(batch: Batch) -> dict[str, Loss]:
    """The mean of f: gradient 1."""
    return {"mean": Loss(batch["f"].mean())}


def net() -> nn.Sequential:
    """Two layers over pixels."""
    draws = generator(1, "optimisers")
    return nn.Sequential(
        nn.Flatten(), LinearHead(3 * 64, 5, draws), nn.Tanh(), LinearHead(5, 3, draws)
    )


def by_torch(kind: type[torch.optim.Optimizer], chosen: Recipe, **options: Any) -> nn.Module:
    """Full batches at the recipe's rate, by torch's plainest loop."""
    module, pixels = net(), DATA.images.gather(torch.arange(len(DATA))).float() / 255
    optimiser = kind(module.parameters(), lr=chosen.lr, foreach=False, **options)  # type: ignore[call-arg]
    for _ in range(chosen.epochs):
        optimiser.zero_grad()
        F.cross_entropy(module(pixels), DATA.labels).backward()
        optimiser.step()
    return module


def trained(chosen: Recipe) -> nn.Module:
    """The same by a phase."""
    module = net()
    item = phase({"head": Part(module)}, objective=classification, recipe=chosen, data=DATA)
    trainer().optimise(item)
    return module


class TestAgainstTorch:
    @pytest.mark.parametrize("optimiser", ["adam", "adamw"])
    @pytest.mark.parametrize("decay", [0.0, 0.3])
    def test_adam(self, optimiser: str, decay: float) -> None:
        chosen = recipe(
            epochs=6,
            batch_size=64,
            lr=0.02,
            optimiser=optimiser,
            betas=(0.8, 0.95),
            weight_decay=decay,
        )
        kind = torch.optim.Adam if optimiser == "adam" else torch.optim.AdamW
        expected = by_torch(kind, chosen, betas=(0.8, 0.95), weight_decay=decay)
        found = trained(chosen)
        # Adam divides by gradients: where one is near 0, rounding weighs more.
        for name, value in state(expected).items():
            torch.testing.assert_close(state(found)[name], value, rtol=1e-3, atol=1e-5)
        # Far from where it began, and from the other optimiser.
        assert not same(state(found), state(net()))


class TestByHand:
    @pytest.mark.parametrize(("clip", "shrunk"), [(1.0, 0.2), (2.5, 0.5), (10.0, 1.0), (None, 1.0)])
    def test_all_gradients_together_are_clipped(self, clip: float | None, shrunk: float) -> None:
        one, two = MeanTimes(0.0), MeanTimes(0.0)

        def objective(batch: Batch) -> dict[str, Loss]:
            # Without the biases: gradients 3 and 4, whose length is 5.
            values = 3 * (batch["one"].mean() - one.bias) + 4 * (batch["two"].mean() - two.bias)
            return {"sum": Loss(values)}

        parts = {"one": Part(one), "two": Part(two)}
        trainer().optimise(phase(parts, objective=objective, recipe=recipe(clip_norm=clip)))
        found = (value_of(one), value_of(two))
        assert found == pytest.approx((-0.3 * shrunk, -0.4 * shrunk), rel=1e-5)

    @pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
    def test_vectors_can_be_spared_decay(self, optimiser: str) -> None:
        def flat(batch: Batch) -> dict[str, Loss]:
            return {"nothing": Loss(0 * batch["head"].sum())}

        moved = []
        for decays in (True, False):
            norm, head = nn.BatchNorm2d(3), LinearHead(192, 2, generator(1, "head"))
            nn.init.ones_(head.bias)
            parts = {
                "norm": Part(nn.Sequential(norm, nn.Flatten()), mode="eval"),
                "head": Part(head, ["norm"]),
            }
            before = state(head)["weight"]
            chosen = recipe(optimiser=optimiser, weight_decay=0.5, decays_vectors=decays)
            trainer().optimise(phase(parts, objective=flat, recipe=chosen))
            assert not torch.equal(head.weight, before)
            moved.append([float((v - 1).abs().max()) > 0.01 for v in (norm.weight, head.bias)])
        assert moved == [[True, True], [False, False]]


class TestGroups:
    def found(self, chosen: Recipe) -> tuple[float, float]:
        """What becomes of two parts of w = 2, the second one in the group "slow"."""
        one, two = MeanTimes(2.0), MeanTimes(2.0)
        parts = {"f": Part(one), "g": Part(two, group="slow")}

        def objective(batch: Batch) -> dict[str, Loss]:
            return {"mean": Loss(batch["f"].mean() + batch["g"].mean())}

        trainer().optimise(phase(parts, objective=objective, recipe=chosen))
        return value_of(one), value_of(two)

    def test_it_learns_at_a_share_of_the_rate(self) -> None:
        chosen = recipe(epochs=2, groups={"slow": {"lr_factor": 0.25}})
        assert self.found(chosen) == pytest.approx((2 - 2 * 0.1, 2 - 2 * 0.025))

    @pytest.mark.parametrize("optimiser", ["sgd", "adam", "adamw"])
    def test_at_none_of_the_rate_nothing_moves(self, optimiser: str) -> None:
        groups = {"slow": {"lr_factor": 0.0}}
        chosen = recipe(epochs=3, optimiser=optimiser, weight_decay=0.5, groups=groups)
        one, two = self.found(chosen)
        assert one < 1.8
        assert two == 2.0

    def test_it_decays_by_a_rate_of_its_own(self) -> None:
        chosen = recipe(weight_decay=0.5, groups={"slow": {"weight_decay": 2.0}})
        assert self.found(chosen) == pytest.approx((2 - 0.1 * 2, 2 - 0.1 * 5))
        chosen = recipe(weight_decay=0.5, groups={"slow": {"weight_decay": 0.0}})
        assert self.found(chosen) == pytest.approx((2 - 0.1 * 2, 2 - 0.1))

    def test_a_group_that_no_part_is_in_is_refused(self) -> None:
        with pytest.raises(ValueError, match="group 'fast'"):
            self.found(recipe(groups={"fast": {"lr_factor": 2.0}}))


class TestRules:
    def test_what_it_gives_counts_and_all_else_has_the_sum(self) -> None:
        one, two = MeanTimes(0.0), MeanTimes(0.0)

        def objective(batch: Batch) -> dict[str, Loss]:
            f, g = batch["f"].mean(), batch["g"].mean()
            return {"both": Loss(3 * f + 4 * g, 2.0), "first": Loss(5 * f)}

        def rule(gradients: LossGradients) -> Mapping[str, Tensor]:
            both = gradients.of(["both"], ["f.value", "g.value"])
            first = gradients.of(["first"], ["f.value", "g.value"])
            # Weights count: 2·3 and 2·4. What a loss does not reach is 0.
            assert [float(value) for value in (*both.values(), *first.values())] == [6, 8, 5, 0]
            return {"f.value": both["f.value"] - first["f.value"]}

        parts = {"f": Part(one), "g": Part(two)}
        trainer().optimise(phase(parts, objective=objective, rule=rule))
        assert value_of(one) == pytest.approx(-0.1 * (6 - 5))
        assert value_of(one, "bias") == pytest.approx(-0.1 * (6 + 5))
        assert value_of(two) == pytest.approx(-0.1 * 8)


class TestAfterStep:
    def test_it_runs_after_every_step_without_autograd(self) -> None:
        module, seen = MeanTimes(0.0), list[tuple[float, bool]]()

        def after() -> None:
            seen.append((value_of(module), torch.is_grad_enabled()))
            module.value.clamp_(min=-0.15)

        item = phase(
            {"f": Part(module)},
            objective=rising,
            after_step=after,
            recipe=recipe(epochs=2),
            data=white([0] * 16),
        )
        trainer().optimise(item)
        # Two epochs of two steps of 0.1, and never below −0.15.
        assert [value for value, _ in seen] == pytest.approx([-0.1, -0.2, -0.25, -0.25])
        assert not any(has_autograd for _, has_autograd in seen)
        assert value_of(module) == pytest.approx(-0.15)


@pytest.mark.parametrize(
    ("num_images", "drops", "sizes"),
    [
        (11, False, [4, 4, 3]),
        (11, True, [4, 4]),
        (12, True, [4, 4, 4]),
        # A single image left over joins the batch before it, which is then no smaller one.
        (13, True, [4, 4, 5]),
        (3, True, [3]),
    ],
)
def test_the_last_smaller_batch_can_be_left_out(
    num_images: int, drops: bool, sizes: list[int]
) -> None:
    seen: list[int] = []

    def objective(batch: Batch) -> dict[str, Loss]:
        seen.append(len(batch.labels))
        return {"squares": Loss(batch["f"].square().mean())}

    work = phase(
        {"f": Part(MeanTimes(1.0))},
        objective=objective,
        data=white([0] * num_images),
        recipe=recipe(batch_size=4, drop_last=drops, epochs=2),
    )
    trainer().run(work)
    assert seen == sizes * 2
