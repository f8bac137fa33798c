"""Learning rates against torch's own schedulers and the conventions of spec §1.6."""

import math

import pytest
import torch

from grace.configs.recipe import Recipe, first_task
from grace.engine.schedule import learning_rates


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


def test_milestone_sixty_means_sixty_epochs_at_the_first_rate() -> None:
    rates = learning_rates(first_task())
    assert rates[59] == 0.1
    assert rates[60] == pytest.approx(0.01)
    assert rates[-1] == pytest.approx(1e-4)
    assert len(rates) == 200


def test_cosine_by_hand() -> None:
    rates = learning_rates(Recipe(epochs=3, lr=1.0, schedule="cosine"))
    assert rates == pytest.approx([1.0, 0.75, 0.25])
    assert learning_rates(Recipe(epochs=2, schedule="constant")) == [0.1, 0.1]
    assert math.isclose(rates[1] + rates[2], 1.0)
