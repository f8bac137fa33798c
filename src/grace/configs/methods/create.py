"""Settings of CREATE, with the published values as defaults."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from typing_extensions import override

from grace.configs.methods.method_settings import BaseMethodSettings
from grace.configs.recipe import Recipe
from grace.configs.traits import Traits


class CreateSettings(BaseMethodSettings):
    """A small auto-encoder for every class on one backbone; the best reconstruction wins."""

    summary = "a small auto-encoder for every class, the best reconstruction wins"
    implementation = "grace.methods.create:Create"
    traits = Traits(freezes_old_network=True, learns_known_classes=True)

    name: Literal["create"] = "create"
    base: Recipe = Field(
        default_factory=lambda: Recipe(epochs=200, schedule="cosine", weight_decay=5e-4),
        description="recipe of the first task",
    )
    update: Recipe = Field(
        default_factory=lambda: Recipe(
            epochs=120, schedule="cosine", weight_decay=5e-4, min_lr=1e-8
        ),
        description="recipe of every later task",
    )
    balance: Recipe = Field(
        default_factory=lambda: Recipe(epochs=20, lr=0.005, schedule="cosine", weight_decay=5e-4),
        description="recipe of the balanced stage that follows, of the auto-encoders alone",
    )
    late_task: int = Field(
        5,
        ge=2,
        description="number of the task from which on update's learning rate is multiplied by "
        "late_factor; higher lets more tasks change the backbone fast",
    )
    late_factor: float = Field(
        0.1, gt=0, le=1, description="that factor; lower holds the backbone nearer to its old self"
    )
    latent_dim: int = Field(
        32,
        ge=1,
        description="latent numbers of each auto-encoder; more reconstruct better, other classes' "
        "features too, and cost 2·(feature width) parameters each",
    )
    score_scale: float = Field(
        0.1,
        gt=0,
        description="factor from a reconstruction's L1 error to its score; higher makes "
        "predictions surer of themselves",
    )
    distillation_weight: float = Field(
        1.0,
        ge=0,
        description="λ: weight of the old scores' distillation, its factor T² apart; higher keeps "
        "old behaviour, lower lets new classes in",
    )
    temperature: float = Field(
        2.0,
        gt=0,
        description="T: softmax temperature of the distillation; higher lets low scores count more",
    )
    contrast_weight: float = Field(
        1.0, ge=0, description="weight of L_CR; higher separates the latents of classes more"
    )
    contrast_temperature: float = Field(
        0.1, gt=0, description="τ of L_CR; lower looks at an image's nearest others alone"
    )
    contrast_base_temperature: float = Field(
        0.07, gt=0, description="τ_b of L_CR, which is scaled by τ/τ_b; lower weighs it more"
    )
    confusion_sharpness: float = Field(
        4.0,
        ge=0,
        description="a: how fast the extra weight of an image in L_CR falls as its two best scores "
        "part; 0 weighs all images 2, high values weigh none but the most confused above 1",
    )
    balance_batch_norm: Literal["train", "eval"] = Field(
        "train",
        description="batch norm of the backbone in the balanced stage. train: normalises by the "
        "batch and moves its running statistics (released code); eval: uses them as they are",
    )

    @override
    def idle_settings(self) -> Mapping[str, str]:
        idle: dict[str, str] = {}
        if self.late_factor == 1:
            idle["late_task"] = "method.late_factor is 1"
        if not self.distillation_weight:
            idle["temperature"] = "method.distillation_weight is 0"
        if not self.contrast_weight:
            of = ("contrast_temperature", "contrast_base_temperature", "confusion_sharpness")
            idle |= dict.fromkeys(of, "method.contrast_weight is 0")
        return idle
