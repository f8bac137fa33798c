"""Settings of the method. grace imports this module with every command: no torch here."""

from typing import Literal

from pydantic import Field

from grace.settings.methods import BaseMethodSettings
from grace.settings.recipe import Recipe, multistep
from grace.settings.traits import Traits


class AlignedSettings(BaseMethodSettings):
    """Replay, then weight alignment after every later task."""

    summary = "replay, then the new classes' weights scaled to the old ones' mean length"
    implementation = "grace_aligned.method:Aligned"
    traits = Traits()

    name: Literal["aligned"] = "aligned"
    update: Recipe = Field(
        default_factory=lambda: multistep(70, 30, 50), description="recipe of every later task"
    )
