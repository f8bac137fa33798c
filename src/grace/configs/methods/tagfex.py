"""Settings of TagFex, with the published values as defaults."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from typing_extensions import override

from grace.configs.methods.method_settings import BaseMethodSettings
from grace.configs.recipe import Recipe, multistep
from grace.configs.traits import Traits


class TagFexSettings(BaseMethodSettings):
    """DER whose new backbones learn from a self-supervised network that goes on for all tasks."""

    summary = "DER, each new backbone guided by a self-supervised network that all tasks train"
    implementation = "grace.methods.tagfex:TagFex"
    traits = Traits(grows_every_task=True, freezes_old_network=True)

    name: Literal["tagfex"] = "tagfex"
    grow: Recipe = Field(
        default_factory=lambda: multistep(170, 80, 120, 150),
        description="recipe of every later task; an image is two rows of a batch",
    )
    auxiliary_weight: float = Field(
        2.0,
        ge=0,
        description="weight of the auxiliary head's loss: more sets the new features further apart "
        "from the old ones",
    )
    contrastive_weight: float = Field(
        1.0,
        ge=0,
        description="weight of InfoNCE, in later tasks times 1 − K_old/K: more lets the agnostic "
        "network follow the new images faster",
    )
    retention_weight: float = Field(
        2.0,
        ge=0,
        description="weight of its distillation, times K_old/K: more holds the agnostic network "
        "nearer to what it was",
    )
    contrastive_temperature: float = Field(
        0.2,
        gt=0,
        description="τ of both: lower looks only at the nearest other images, higher at all alike",
    )
    projector_width: int = Field(
        512,
        ge=1,
        le=8192,
        description="h: hidden units of the projector; 2048 published for resnet18",
    )
    embedding_width: int = Field(
        128, ge=1, le=8192, description="o: width of what views are compared by; 1024 for resnet18"
    )
    merged_weight: float = Field(
        1.0,
        ge=0,
        description="weight of CE_trans, the cross-entropy of the merged features' classifier: "
        "more draws the new backbone to features that fit the agnostic ones",
    )
    transfer_weight: float = Field(
        1.0,
        ge=0,
        description="weight of L_transfer: more makes the new logits follow that classifier, where "
        "it is the better one",
    )
    transfer_temperature: float = Field(
        2.0, gt=0, description="T of L_transfer: higher transfers more of the small probabilities"
    )
    attention_heads: int = Field(
        8,
        ge=1,
        description="heads of the merge attention, a divisor of the last map's channels: more see "
        "narrower slices of a token, 8 of the 64 channels of resnet32",
    )
    agnostic_share: float = Field(
        0.05,
        ge=0,
        le=1,
        description="share of the agnostic network in a new backbone's first parameters, the rest "
        "is the last backbone: 0 starts as that one, 1 as the agnostic network",
    )
    old_rows: Literal["zero", "random"] = Field(
        "zero",
        description="how the old classes' weights of the new features start; random is PyCIL's",
    )

    @override
    def idle_settings(self) -> Mapping[str, str]:
        idle: dict[str, str] = {}
        if not self.transfer_weight:
            idle["transfer_temperature"] = "method.transfer_weight is 0"
            if not self.merged_weight:
                idle["attention_heads"] = "method.transfer_weight and method.merged_weight are 0"
        if not self.contrastive_weight and not self.retention_weight:
            reason = "method.contrastive_weight and method.retention_weight are 0"
            idle["contrastive_temperature"] = reason
        return idle
