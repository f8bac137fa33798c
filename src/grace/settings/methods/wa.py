"""Settings of WA, with the published values as defaults."""

from typing import Literal

from pydantic import Field

from grace.settings.methods.method_settings import AligningSettings
from grace.settings.recipe import Recipe, multistep
from grace.settings.traits import Traits


class WASettings(AligningSettings):
    """Replay with distillation of the old logits, then weight alignment of the new classes."""

    summary = "replay with distillation, then new classes scaled to the old ones' mean length"
    implementation = "grace.methods.wa:WA"
    traits = Traits(freezes_old_network=True)

    name: Literal["wa"] = "wa"
    update: Recipe = Field(
        default_factory=lambda: multistep(170, 60, 100, 140),
        description="recipe of every later task",
    )
    temperature: float = Field(
        2.0,
        gt=0,
        description="T: softmax temperature of the distillation. Higher: small probabilities of "
        "the teacher count more",
    )
