"""Learning rates against torch's own schedulers and docs/protocols.md#recipes."""

import math

import pytest
import torch

from grace.engine.schedule import learning_rates
from grace.settings.recipe import Recipe, first_task


def torch_rates(recipe: Recipe) -> list[float]:
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=recipe.lr)
    schedulers = torch.optim.lr_scheduler
    scheduler: torch.optim.lr_scheduler.LRScheduler
    if recipe.schedule == "cosine":
        scheduler = schedulers.CosineAnnealingLR(optimiser, recipe.epochs)
    else:
        scheduler = schedulers.MultiStepLR(optimiser, list(recipe.milestones), recipe.decay)
    rates = []
    for _ in range(recipe.epochs):
        rates.append(optimiser.param_groups[0]["lr"])
        optimiser.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(
    "recipe",
    [first_task(), Recipe(epochs=130, schedule="cosine"), Recipe(epochs=9, milestones=(2, 5))],
)
def test_equals_torch(recipe: Recipe) -> None:
    assert learning_rates(recipe) == pytest.approx(torch_rates(recipe), rel=1e-9, abs=1e-12)


def test_warm_up_by_hand() -> None:
    chosen = Recipe(
        epochs=12, lr=0.1, warmup_epochs=9, warmup_lr=0.01, milestones=(10,), schedule="multistep"
    )
    # Nine steps of 0.01 lead from 0.01 to 0.1; the milestone stays where it is.
    expected = [0.01 * (epoch + 1) for epoch in range(9)] + [0.1, 0.01, 0.01]
    assert learning_rates(chosen) == pytest.approx(expected)


def test_warm_up_from_nothing_has_one_still_epoch() -> None:
    chosen = Recipe(epochs=5, lr=0.4, warmup_epochs=2, schedule="constant")
    assert learning_rates(chosen) == pytest.approx([0.0, 0.2, 0.4, 0.4, 0.4])


def test_warm_up_moves_no_later_rate_of_a_cosine() -> None:
    plain = learning_rates(Recipe(epochs=8, lr=1.0, schedule="cosine"))
    warm = learning_rates(Recipe(epochs=8, lr=1.0, schedule="cosine", warmup_epochs=3))
    assert warm[:3] == pytest.approx([0.0, 1 / 3, 2 / 3])
    assert warm[3:] == plain[3:]


def test_a_cosine_with_a_floor_by_hand() -> None:
    chosen = Recipe(epochs=4, lr=1.0, min_lr=0.2, schedule="cosine")
    # 0.2 + 0.8·(1 + cos)/2 at cos = 1, 1/√2, 0, −1/√2.
    half = 0.4 / math.sqrt(2)
    assert learning_rates(chosen) == pytest.approx([1.0, 0.6 + half, 0.6, 0.6 - half])
