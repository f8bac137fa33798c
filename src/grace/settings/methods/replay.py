"""Settings of Replay, with the published values as defaults."""

from typing import Literal

from pydantic import Field

from grace.settings.methods.method_settings import SmoothingSettings
from grace.settings.recipe import Recipe, multistep
from grace.settings.traits import Traits


class ReplaySettings(SmoothingSettings):
    """Finetune with the exemplars mixed in and the loss over all logits."""

    summary = "one network trained on each task's images and the exemplars"
    implementation = "grace.methods.replay:Replay"
    traits = Traits(learns_known_classes=True)

    name: Literal["replay"] = "replay"
    update: Recipe = Field(
        default_factory=lambda: multistep(70, 30, 50), description="recipe of every later task"
    )
