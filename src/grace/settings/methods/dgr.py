"""Settings of DGR, with the published values as defaults."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from typing_extensions import override

from grace.settings.methods.method_settings import BaseMethodSettings
from grace.settings.recipe import Recipe, multistep
from grace.settings.traits import Traits


def _published() -> Recipe:
    return multistep(160, 80, 120, weight_decay=5e-4)


class DGRSettings(BaseMethodSettings):
    """Replay with distillation, the head's gradients reweighted class by class (DGR)."""

    summary = "replay with distillation, the head's gradients reweighted class by class"
    implementation = "grace.methods.dgr:DGR"
    traits = Traits(freezes_old_network=True)

    name: Literal["dgr"] = "dgr"
    base: Recipe = Field(default_factory=_published, description="recipe of the first task")
    update: Recipe = Field(default_factory=_published, description="recipe of every later task")
    distillation_weight: float = Field(
        0.7,
        ge=0,
        description="λ: factor of β, the weight of the distillation. Higher: the backbone "
        "forgets less and learns new classes less well; the head is the same for "
        "every λ above 0; 0: no distillation",
    )
    distillation_by: Literal["images", "classes"] = Field(
        "images",
        description="formula of β. images: λ·sqrt(n_seen/n_new)·T² (released behaviour); "
        "classes: λ·K_old/K_new",
    )
    distribution_aware: bool = Field(
        True,
        description="true: classes that lost more images are distilled more strongly; false: "
        "all classes are distilled alike",
    )
    temperature: float = Field(
        2.0,
        gt=0,
        description="T: softmax temperature of the distillation. Higher: small probabilities of "
        "the teacher count more",
    )
    discount_by: Literal["images", "classes"] = Field(
        "images",
        description="formula of γ, a factor on the gradients of the head's new rows. images: "
        "exp(−n_seen/(n_seen + n_new)) (released behaviour); classes: exp(−K_old/K)",
    )

    @override
    def idle_settings(self) -> Mapping[str, str]:
        off = "method.distillation_weight is 0"
        distils = ("distillation_by", "distribution_aware", "temperature")
        return {} if self.distillation_weight else dict.fromkeys(distils, off)
