"""Learning rates of a recipe, as a list: nothing to step, nothing to save."""

import math

from grace.configs.recipe import Recipe


def learning_rates(recipe: Recipe) -> list[float]:
    """Learning rate of every epoch of a recipe (spec §1.6).

    multistep: lr · decay^(milestones ≤ epoch); cosine: lr · (1 + cos(π·epoch/epochs)) / 2, which
    would reach 0 at the end of the last epoch; constant: lr.

    Returns:
        ``recipe.epochs`` rates.
    """
    epochs = range(recipe.epochs)
    if recipe.schedule == "cosine":
        return [recipe.lr * (1 + math.cos(math.pi * epoch / recipe.epochs)) / 2 for epoch in epochs]
    if recipe.schedule == "multistep":
        return [
            recipe.lr * recipe.decay ** sum(epoch >= milestone for milestone in recipe.milestones)
            for epoch in epochs
        ]
    return [recipe.lr] * recipe.epochs
