"""Recipes: how one phase is optimised."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from grace.configs._base import Settings


class Recipe(Settings):
    """SGD settings and learning-rate schedule of one phase (``spec``: optimiser conventions).

    The schedule is stepped once per epoch, at its end: a milestone of 60 means that epochs 0 to 59
    run at the first rate. ``cosine`` falls from ``lr`` to 0 over ``epochs``.
    """

    epochs: int = Field(ge=1, le=1_000_000, description="passes over the phase's data")
    batch_size: int = Field(128, ge=1, description="images per step; the last batch may be smaller")
    lr: float = Field(0.1, gt=0, description="learning rate at the start")
    momentum: float = Field(0.9, ge=0, lt=1, description="SGD momentum, not Nesterov")
    weight_decay: float = Field(
        2e-4, ge=0, description="L2 penalty on every parameter, batch norm and biases included"
    )
    schedule: Literal["multistep", "cosine", "constant"] = Field(
        "multistep", description="how the learning rate falls"
    )
    milestones: tuple[int, ...] = Field(
        (), description="epochs after which a multistep schedule multiplies lr by decay"
    )
    decay: float = Field(0.1, gt=0, le=1, description="factor at each milestone")

    @model_validator(mode="after")
    def _milestones_fit(self) -> Self:
        if self.schedule != "multistep" and self.milestones:
            raise ValueError(
                f"milestones {list(self.milestones)} have no effect with schedule "
                f"'{self.schedule}': remove them or choose 'multistep'"
            )
        if list(self.milestones) != sorted(set(self.milestones)):
            raise ValueError(f"milestones {list(self.milestones)} must increase")
        if self.milestones and not 0 < self.milestones[0] <= self.milestones[-1] < self.epochs:
            raise ValueError(
                f"milestones {list(self.milestones)} must lie between 1 and epochs - 1 "
                f"({self.epochs - 1})"
            )
        return self


def multistep(epochs: int, *milestones: int, weight_decay: float = 2e-4) -> Recipe:
    """Build a recipe at lr 0.1 that is divided by ten at each milestone (epochs)."""
    return Recipe(epochs=epochs, milestones=milestones, weight_decay=weight_decay)


def first_task() -> Recipe:
    """Build the recipe most methods share for their first task (200 epochs, wd 5e-4)."""
    return multistep(200, 60, 120, 170, weight_decay=5e-4)


def completed(given: Mapping[str, Any], default: Recipe) -> dict[str, Any]:
    """Fill the settings that ``given`` leaves out from ``default``.

    Milestones belong to a number of epochs: where only the epochs change, the default's milestones
    keep their share of them; another schedule than multistep has none.
    """
    recipe = {**default.model_dump(), **given}
    if "milestones" not in given:
        recipe["milestones"] = ()
        if recipe["schedule"] == default.schedule and isinstance(recipe["epochs"], int):
            recipe["milestones"] = scaled(default.milestones, default.epochs, recipe["epochs"])
    return recipe


def scaled(milestones: Sequence[int], epochs: int, new_epochs: int) -> tuple[int, ...]:
    """Move milestones to the same shares of another number of epochs."""
    places = {round(milestone / epochs * new_epochs) for milestone in milestones}
    return tuple(sorted(place for place in places if 0 < place < new_epochs))
