"""Settings of TagFex, with the published values as defaults."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from typing_extensions import override

from grace.settings.methods.method_settings import AligningSettings
from grace.settings.recipe import Recipe, multistep
from grace.settings.traits import Traits


class TagFexSettings(AligningSettings):
    """DER whose new backbones learn from a self-supervised network that every task trains."""

    summary = "DER, each new backbone guided by a self-supervised network that all tasks train"
    implementation = "grace.methods.tagfex:TagFex"
    traits = Traits(grows_every_task=True, freezes_old_network=True)

    name: Literal["tagfex"] = "tagfex"
    grow: Recipe = Field(
        default_factory=lambda: multistep(170, 80, 120, 150),
        description="recipe of every later task; each image is two rows of a batch",
    )
    auxiliary_weight: float = Field(
        2.0,
        ge=0,
        description="weight of the auxiliary head's loss. Higher: new features separate new "
        "from old classes more; 0: no auxiliary loss",
    )
    contrastive_weight: float = Field(
        1.0,
        ge=0,
        description="weight of InfoNCE, in later tasks times 1 − K_old/K. Higher: the agnostic "
        "network adapts to new images faster",
    )
    retention_weight: float = Field(
        2.0,
        ge=0,
        description="weight of the agnostic network's distillation, times K_old/K. Higher: it "
        "changes less",
    )
    contrastive_temperature: float = Field(
        0.2,
        gt=0,
        description="τ of both. Lower: the most similar images count more",
    )
    projector_width: int = Field(
        512,
        ge=1,
        le=8192,
        description="h: hidden units of the projector; 2048 published for resnet18. Higher: "
        "slower training and more memory",
    )
    embedding_width: int = Field(
        128,
        ge=1,
        le=8192,
        description="o: width of the embeddings in which views are compared; 1024 published for "
        "resnet18. Higher: slower training and more memory",
    )
    merged_weight: float = Field(
        1.0,
        ge=0,
        description="weight of CE_trans, the cross-entropy of the merged features' classifier. "
        "Higher: the new backbone's features fit the agnostic ones better",
    )
    transfer_weight: float = Field(
        1.0,
        ge=0,
        description="weight of L_transfer. Higher: the new logits are closer to that "
        "classifier's in batches where its loss is lower; 0: no transfer",
    )
    transfer_temperature: float = Field(
        2.0, gt=0, description="T of L_transfer. Higher: small probabilities count more"
    )
    attention_heads: int = Field(
        8,
        ge=1,
        description="heads of the merge attention, a divisor of the last map's channels. More: "
        "each head sees fewer channels, 8 of 64 for resnet32",
    )
    agnostic_share: float = Field(
        0.05,
        ge=0,
        le=1,
        description="share of the agnostic network in a new backbone's first parameters; the "
        "rest is the last backbone's. 0: a copy of the last backbone; 1: a copy of "
        "the agnostic network",
    )
    old_rows: Literal["zero", "random"] = Field(
        "zero",
        description="first values of old classes' weights for new features. zero: 0; random: "
        "fresh draws, as in PyCIL",
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
