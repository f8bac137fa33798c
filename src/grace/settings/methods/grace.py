"""Settings of GRACE, with the published values as defaults."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator
from typing_extensions import override

from grace.base.errors import GraceError
from grace.settings.methods.method_settings import AligningSettings
from grace.settings.recipe import Recipe, multistep
from grace.settings.traits import ThresholdRule, Traits


class GraceSettings(AligningSettings):
    """GRACE: grow a provisional backbone, assess the mergeable one, compress if there is room."""

    summary = "grow a provisional backbone, assess the mergeable one, compress where there is room"
    implementation = "grace.methods.grace:Grace"
    traits = Traits(freezes_old_network=True, learns_known_classes=True, takes_frozen_trunk=True)

    name: Literal["grace"] = "grace"
    grow: Recipe = Field(
        default_factory=lambda: multistep(170, 80, 120, 150), description="recipe of Grow"
    )
    compress: Recipe = Field(
        default_factory=lambda: Recipe(epochs=130, schedule="cosine"),
        description="recipe of Compress",
    )
    auxiliary_weight: float = Field(
        1.0,
        ge=0,
        description="weight of the auxiliary head's loss in Grow (Eq. 3: 1). Higher: new "
        "features separate new from old classes more; 0: no auxiliary loss",
    )
    threshold: float = Field(
        0.6,
        ge=0,
        le=1,
        description="τ₁: the network expands at this saturation or above. Lower: more "
        "backbones; 0: every task expands; 1: nearly every task compresses",
    )
    threshold_decay: float = Field(
        0.96,
        gt=0,
        le=1,
        description="ρ: factor on the threshold after each compression. Lower: an expansion "
        "comes after fewer compressions; 1: the threshold never changes",
    )
    relative_threshold: float | None = Field(
        None,
        gt=0,
        description="the network expands when the saturation is this many times that of the "
        "mergeable backbone's first assessment, which always compresses; threshold_decay acts on "
        "it too. Lower: more backbones; none: the threshold decides (the paper)",
    )
    assess_on: Literal["current", "previous"] = Field(
        "current",
        description="current: after Grow, on this task's images and exemplars (the paper); "
        "previous: at the end of the task before, on its augmented images (released behaviour)",
    )
    expand_at: tuple[int, ...] | None = Field(
        None,
        description="tasks (from 2) that expand, while all others compress; saturation is only "
        "recorded. none: the saturation decides",
    )
    gamma: float = Field(
        5.0,
        gt=0,
        description="γ: exponent of the power mean of P and B. Higher: w is closer to the "
        "larger of the two",
    )
    initialisation: Literal["importance", "average", "merge", "provisional", "random"] = Field(
        "importance",
        description="student backbone: weighted by w, by 1/2, a copy of one backbone, or fresh",
    )
    logit_distillation: bool = Field(
        True,
        description="true: Compress pulls the student's logits to the teacher's (KL); false: not",
    )
    feature_distillation: bool = Field(
        True,
        description="true: Compress pulls the student's features to the teacher's (MSE); false: "
        "not",
    )
    logit_weight: float = Field(
        0.4,
        ge=0,
        description="α: weight of logit distillation. Higher: the student's logits are closer "
        "to the teacher's, and labels count less",
    )
    feature_weight: float = Field(
        1.6,
        ge=0,
        description="β: weight of feature distillation. Higher: the student's features are "
        "closer to the teacher's, and labels count less",
    )
    temperature: float = Field(
        2.0,
        gt=0,
        description="T: softmax temperature of the distillation. Higher: small probabilities of "
        "the teacher count more",
    )
    scale_cross_entropy: bool = Field(
        True,
        description="true: keep the factor 1 − λ on the cross-entropy if both distillations are "
        "off; false: drop it",
    )

    @model_validator(mode="after")
    def _expansions_are_later_tasks(self) -> Self:
        tasks = self.expand_at
        if tasks is not None and (list(tasks) != sorted(set(tasks)) or any(t < 2 for t in tasks)):
            raise GraceError(f"expand_at {list(tasks)} must increase and start at task 2 or later")
        return self

    @property
    @override
    def threshold_rule(self) -> ThresholdRule | None:
        if self.relative_threshold is not None:
            return None
        return ThresholdRule(initial=self.threshold, decay=self.threshold_decay)

    @property
    @override
    def given_expansions(self) -> tuple[int, ...] | None:
        return self.expand_at

    @override
    def without_threshold(self) -> Self | None:
        if self.relative_threshold is not None:
            return None
        usual = {"threshold": 0.0, "threshold_decay": 1.0, "expand_at": None}
        return self.model_copy(update=usual)

    @override
    def idle_settings(self) -> Mapping[str, str]:
        logits, features = self.logit_distillation, self.feature_distillation
        idle: dict[str, str] = {}
        if self.expand_at is not None:
            names = ("threshold", "threshold_decay", "relative_threshold")
            idle |= dict.fromkeys(names, "method.expand_at decides")
        elif self.relative_threshold is not None:
            idle["threshold"] = "method.relative_threshold decides"
        if self.initialisation != "importance":
            start = self.initialisation
            idle["gamma"] = f"it weights method.initialisation=importance, not {start}"
        if not logits:
            off = "method.logit_distillation is off"
            idle |= dict.fromkeys(("logit_weight", "temperature"), off)
        if not features:
            idle["feature_weight"] = "method.feature_distillation is off"
        if not self.scale_cross_entropy and (logits or features):
            idle["scale_cross_entropy"] = "it only matters when both distillations are off"
        return idle
