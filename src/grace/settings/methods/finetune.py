"""Settings of Finetune, with the published values as defaults."""

from typing import Literal

from pydantic import Field

from grace.settings.methods.method_settings import BaseMethodSettings
from grace.settings.recipe import Recipe, multistep
from grace.settings.traits import Traits


class FinetuneSettings(BaseMethodSettings):
    """Lower bound: each task's own images, no memory, loss on the new logits only."""

    summary = "lower bound: one network trained on each task's own images alone"
    implementation = "grace.methods.finetune:Finetune"
    traits = Traits(memory="none", compares_new_classes_only=True)

    name: Literal["finetune"] = "finetune"
    update: Recipe = Field(
        default_factory=lambda: multistep(80, 40, 70), description="recipe of every later task"
    )
