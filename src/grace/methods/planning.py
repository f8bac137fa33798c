"""The plan of a task: the phases that a method will run, from which costs are estimated."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from grace.settings.method import AnyMethodSettings
from grace.settings.recipe import Recipe


@final
@dataclass(frozen=True, kw_only=True)
class Coming:
    """A coming task, and the learner before it.

    Args:
        is_first: True for the first task.
        num_new: classes that the learner does not know.
        num_images: images of the task.
        num_kept: exemplars that the learner has.
        num_seen: images of all earlier tasks.
        num_backbones: backbones of the network.
    """

    is_first: bool
    num_new: int
    num_images: int
    num_kept: int
    num_seen: int
    num_backbones: int


@final
@dataclass(frozen=True, kw_only=True)
class PlannedPhase:
    """One phase, or gradient sweep, of a coming task.

    Args:
        name: of the phase.
        epochs: passes over the images.
        num_images: images that it trains on.
        trained: passes per image through a backbone that trains.
        frozen: passes per image through a backbone that does not.
    """

    name: str
    epochs: int
    num_images: int
    trained: float = 1.0
    frozen: float = 0.0

    @property
    def passes(self) -> float:
        """The cost in training passes of one image; a frozen pass costs a third of one."""
        return self.epochs * self.num_images * (self.trained + self.frozen / 3)


def usual_plan(settings: AnyMethodSettings, coming: Coming) -> Sequence[PlannedPhase]:
    """Plan the phases of most methods: the base recipe first, later each other recipe in turn.

    Later tasks train on exemplars too, and beside the frozen old network if the traits say so.
    """
    frozen = coming.num_backbones if settings.traits.freezes_old_network else 0
    return [
        PlannedPhase(
            name=name,
            epochs=recipe.epochs,
            num_images=coming.num_images + coming.num_kept,
            frozen=0 if coming.is_first else frozen,
        )
        for name, recipe in vars(settings).items()
        if isinstance(recipe, Recipe) and (name == "base") == coming.is_first
    ]


def with_teacher(plan: Sequence[PlannedPhase], name: str) -> Sequence[PlannedPhase]:
    """Add a frozen backbone to one phase of a plan: that of the expanded teacher."""
    return [replace(p, frozen=p.frozen + 1) if p.name == name else p for p in plan]
