"""Settings of CREATE, with the published values as defaults."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from typing_extensions import override

from grace.settings.methods.method_settings import PriorSettings
from grace.settings.recipe import Recipe
from grace.settings.traits import Traits


class CreateSettings(PriorSettings):
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
        description="recipe of the balanced stage that follows; it trains the auto-encoders only",
    )
    late_task: int = Field(
        5,
        ge=2,
        description="from this task on, the learning rate of update is multiplied by "
        "late_factor. Higher: more tasks change the backbone fast",
    )
    late_factor: float = Field(
        0.1, gt=0, le=1, description="that factor. Lower: late tasks change the backbone less"
    )
    latent_dim: int = Field(
        32,
        ge=1,
        description="H: latent width of each auto-encoder. Higher: better reconstructions, of "
        "other classes' features too, and 2·(feature width) more parameters each",
    )
    score_scale: float = Field(
        0.1,
        gt=0,
        description="factor from a reconstruction's L1 error to its score. Higher: more "
        "confident predictions",
    )
    distillation_weight: float = Field(
        1.0,
        ge=0,
        description="λ: weight of the old scores' distillation, the factor T² not included. "
        "Higher: less is forgotten and new classes are learnt less well; 0: no "
        "distillation",
    )
    temperature: float = Field(
        2.0,
        gt=0,
        description="T: softmax temperature of the distillation. Higher: small probabilities of "
        "the teacher count more",
    )
    contrast_weight: float = Field(
        1.0,
        ge=0,
        description="weight of L_CR. Higher: the latents of classes are further apart; 0: no L_CR",
    )
    contrast_temperature: float = Field(
        0.1, gt=0, description="τ of L_CR. Lower: the most similar images count more"
    )
    contrast_base_temperature: float = Field(
        0.07, gt=0, description="τ_b of L_CR, which is multiplied by τ/τ_b. Lower: L_CR counts more"
    )
    confusion_sharpness: float = Field(
        4.0,
        ge=0,
        description="a: how fast an image's extra weight in L_CR falls as its two best scores "
        "differ more. 0: weight 2 for all images; higher: extra weight for the most "
        "confused images only",
    )
    balance_batch_norm: Literal["train", "eval"] = Field(
        "train",
        description="batch norm of the backbone in the balanced stage. train: normalises by the "
        "batch and updates its statistics (released behaviour); eval: unchanged",
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
