"""The learning rates of a recipe, as a list."""

import math

from grace.settings.recipe import Recipe


def learning_rates(recipe: Recipe) -> list[float]:
    """Return the learning rate of every epoch of a recipe.

    multistep: lr · decay^(milestones ≤ epoch);
    cosine: min_lr + (lr − min_lr)·(1 + cos(π·epoch/epochs))/2, which would reach ``min_lr`` at the
    end of the last epoch;
    constant: lr.
    The first ``warmup_epochs`` rise linearly instead:
    warmup_lr + (lr − warmup_lr)·epoch/warmup_epochs.

    Returns:
        ``recipe.epochs`` rates.
    """
    warmup = recipe.warmup_epochs
    return [
        recipe.warmup_lr + (recipe.lr - recipe.warmup_lr) * epoch / warmup
        if epoch < warmup
        else _scheduled(recipe, epoch)
        for epoch in range(recipe.epochs)
    ]


def _scheduled(recipe: Recipe, epoch: int) -> float:
    if recipe.schedule == "cosine":
        span = recipe.lr - recipe.min_lr
        return recipe.min_lr + span * (1 + math.cos(math.pi * epoch / recipe.epochs)) / 2
    if recipe.schedule == "multistep":
        return recipe.lr * recipe.decay ** sum(epoch >= mark for mark in recipe.milestones)
    return recipe.lr
