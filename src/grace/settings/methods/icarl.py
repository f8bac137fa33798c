"""Settings of iCaRL, with the published values as defaults."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from typing_extensions import override

from grace.settings.methods.method_settings import SmoothingSettings
from grace.settings.recipe import Recipe, multistep
from grace.settings.traits import Traits


class ICaRLSettings(SmoothingSettings):
    """Replay with distillation of the old logits, classified by nearest mean of exemplars."""

    summary = "replay with distillation, classified by the nearest mean of exemplars"
    implementation = "grace.methods.icarl:ICaRL"
    traits = Traits(freezes_old_network=True, learns_known_classes=True)

    name: Literal["icarl"] = "icarl"
    update: Recipe = Field(
        default_factory=lambda: multistep(170, 80, 120), description="recipe of every later task"
    )
    distillation_weight: float = Field(
        1.0,
        ge=0,
        description="weight of the old logits' distillation beside the cross-entropy. Higher: "
        "less is forgotten and new classes are learnt less well; 0: no distillation",
    )
    temperature: float = Field(
        2.0,
        gt=0,
        description="T: softmax temperature of the distillation. Higher: small probabilities of "
        "the teacher count more",
    )

    @override
    def idle_settings(self) -> Mapping[str, str]:
        return (
            {} if self.distillation_weight else {"temperature": "method.distillation_weight is 0"}
        )
