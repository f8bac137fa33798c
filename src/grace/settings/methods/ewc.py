"""Settings of EWC, with the published values as defaults."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from typing_extensions import override

from grace.settings.methods.method_settings import BaseMethodSettings
from grace.settings.recipe import Recipe, multistep
from grace.settings.traits import Traits


class EWCSettings(BaseMethodSettings):
    """Finetune with a quadratic penalty that holds important parameters where they were (EWC)."""

    summary = "one network on each task's own images, held where it was important"
    implementation = "grace.methods.ewc:EWC"
    traits = Traits(memory="none", compares_new_classes_only=True)

    name: Literal["ewc"] = "ewc"
    update: Recipe = Field(
        default_factory=lambda: multistep(180, 70, 120, 150),
        description="recipe of every later task",
    )
    penalty_weight: float = Field(
        1000.0,
        ge=0,
        description="λ: weight of the penalty Ω. Higher: less is forgotten and new classes are "
        "learnt less well; 0: no penalty",
    )
    importance_limit: float = Field(
        1e-4,
        gt=0,
        description="upper limit of a parameter's importance F. Higher: important parameters "
        "are held more firmly, and training can become unstable; change it with λ",
    )

    @override
    def idle_settings(self) -> Mapping[str, str]:
        return {} if self.penalty_weight else {"importance_limit": "method.penalty_weight is 0"}
