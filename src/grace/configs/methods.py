"""Settings of every method: one frozen model each, with the published values as defaults.

A model also describes its method to the rest of the package: in a line, by its traits, and by the
place of the class that carries it out. This module imports no registry, so that the settings of a
method in another package can be derived from it while the registry is being made.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator
from typing_extensions import override

from grace.configs._base import Settings
from grace.configs.recipe import Recipe, completed, first_task, multistep
from grace.configs.traits import ThresholdRule, Traits


class AnyMethodSettings(Settings):
    """What the settings of every method have.

    A concrete model gives ``name`` as ``Literal["<name>"] = "<name>"``, and a value to each of the
    class variables. All its settings have defaults.
    """

    summary: ClassVar[str]
    """The line that ``grace list`` shows."""
    implementation: ClassVar[str]
    """Where the method's class is, as ``"package.module:Class"``; imported when it is needed."""
    traits: ClassVar[Traits] = Traits()
    """What other rooms may ask of the method."""

    name: str

    @property
    def threshold_rule(self) -> ThresholdRule | None:
        """The threshold that decides whether the network grows, or none if there is no such one."""
        return None

    def idle_settings(self) -> Mapping[str, str]:
        """Map the settings that have no effect beside the others to the reason.

        The name of a recipe stands for all settings in it.
        """
        return {}

    @model_validator(mode="before")
    @classmethod
    def _complete_recipes(cls, values: Any) -> Any:  # noqa: ANN401 - whatever was read
        """Fill what a partly given recipe leaves out from that phase's own default."""
        if not isinstance(values, dict):
            return values
        filled = dict(values)
        for name, field in cls.model_fields.items():
            if field.annotation is Recipe and isinstance(values.get(name), dict):
                default: Recipe = field.get_default(call_default_factory=True)
                filled[name] = completed(values[name], default)
        return filled


class BaseMethodSettings(AnyMethodSettings):
    """Settings of a method whose first task trains one fresh network."""

    base: Recipe = Field(default_factory=first_task, description="recipe of the first task")


class FinetuneSettings(BaseMethodSettings):
    """Lower bound: each task's own images, no memory, loss on the new logits only."""

    summary = "lower bound: one network trained on each task's own images alone"
    implementation = "grace.methods.finetune:Finetune"
    traits = Traits(memory="none", compares_new_classes_only=True)

    name: Literal["finetune"] = "finetune"
    update: Recipe = Field(
        default_factory=lambda: multistep(80, 40, 70), description="recipe of every later task"
    )


class ReplaySettings(BaseMethodSettings):
    """Finetune with the exemplars mixed in and the loss over all logits."""

    summary = "one network trained on each task's images and the exemplars"
    implementation = "grace.methods.replay:Replay"
    traits = Traits(learns_known_classes=True)

    name: Literal["replay"] = "replay"
    update: Recipe = Field(
        default_factory=lambda: multistep(70, 30, 50), description="recipe of every later task"
    )


class DERSettings(BaseMethodSettings):
    """One new backbone per task beside the frozen old ones (DER without pruning)."""

    summary = "one new backbone per task beside the frozen old ones"
    implementation = "grace.methods.der:DER"
    traits = Traits(grows_every_task=True, freezes_old_network=True)

    name: Literal["der"] = "der"
    grow: Recipe = Field(
        default_factory=lambda: multistep(170, 80, 120, 150),
        description="recipe of every later task",
    )
    auxiliary_weight: float = Field(1.0, ge=0, description="weight of the auxiliary head's loss")


Beta = Annotated[float, Field(ge=0, lt=1)]
"""How strongly classes are weighed by their numbers of images: 0 not at all, near 1 inversely."""


class FosterSettings(BaseMethodSettings):
    """Boost the old network with a second backbone, then distil both into one student (FOSTER)."""

    summary = "boost the old network with a second backbone, distil both into one student"
    implementation = "grace.methods.foster:Foster"
    traits = Traits(freezes_old_network=True)

    name: Literal["foster"] = "foster"
    base: Recipe = Field(
        default_factory=lambda: Recipe(epochs=200, schedule="cosine", weight_decay=5e-4),
        description="recipe of the first task",
    )
    boost: Recipe = Field(
        default_factory=lambda: Recipe(epochs=170, schedule="cosine", weight_decay=5e-4),
        description="recipe of boosting, in every later task",
    )
    compress: Recipe = Field(
        default_factory=lambda: Recipe(epochs=130, schedule="cosine", weight_decay=0.0),
        description="recipe of the compression that follows",
    )
    boosting_beta: tuple[Beta, ...] = Field(
        (0.96,),
        description="β₁ of task 2, 3, …, each in [0, 1), the last one for all that follow: how "
        "strongly boosting weighs classes by their numbers of images",
    )
    compression_beta: float = Field(
        0.97, ge=0, lt=1, description="β₂: how strongly the compression weighs them so"
    )
    distillation_weight: float = Field(
        1.0, ge=0, description="λ_okd: weight of the old logits' distillation in boosting"
    )
    temperature: float = Field(
        2.0, gt=0, description="T: softmax temperature of both distillations"
    )
    herd_with: Literal["student", "teacher"] = Field(
        "student", description="whose features choose the exemplars"
    )

    @field_validator("boosting_beta", mode="before")
    @classmethod
    def _one_value_is_enough(cls, value: Any) -> Any:  # noqa: ANN401 - whatever was read
        if value in ((), []):
            raise ValueError("needs the value of task 2 at least")
        return (value,) if isinstance(value, int | float) else value


class MemoSettings(BaseMethodSettings):
    """One new last stage per task over a trunk that all tasks share (MEMO)."""

    summary = "one new last stage per task over a trunk that all tasks share"
    implementation = "grace.methods.memo:Memo"
    traits = Traits(grows_every_task=True, shares_trunk=True, freezes_old_network=True)

    name: Literal["memo"] = "memo"
    grow: Recipe = Field(
        default_factory=lambda: multistep(170, 80, 120, 150),
        description="recipe of every later task",
    )
    auxiliary_weight: float = Field(1.0, ge=0, description="weight of the auxiliary head's loss")
    train_base: bool = Field(
        True, description="train the shared trunk in later tasks too; false freezes it"
    )


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
    penalty_weight: float = Field(1000.0, ge=0, description="λ: weight of the penalty Ω")
    importance_limit: float = Field(
        1e-4, gt=0, description="upper limit of a parameter's importance F; belongs to λ = 1000"
    )

    @override
    def idle_settings(self) -> Mapping[str, str]:
        return {} if self.penalty_weight else {"importance_limit": "method.penalty_weight is 0"}


class ICaRLSettings(BaseMethodSettings):
    """Replay with distillation of the old logits, classified by nearest mean of exemplars."""

    summary = "replay with distillation, classified by the nearest mean of exemplars"
    implementation = "grace.methods.icarl:ICaRL"
    traits = Traits(freezes_old_network=True, learns_known_classes=True)

    name: Literal["icarl"] = "icarl"
    update: Recipe = Field(
        default_factory=lambda: multistep(170, 80, 120), description="recipe of every later task"
    )
    distillation_weight: float = Field(
        1.0, ge=0, description="weight of the old logits' distillation beside the cross-entropy"
    )
    temperature: float = Field(2.0, gt=0, description="T: softmax temperature of the distillation")

    @override
    def idle_settings(self) -> Mapping[str, str]:
        return (
            {} if self.distillation_weight else {"temperature": "method.distillation_weight is 0"}
        )


class WASettings(BaseMethodSettings):
    """Replay with distillation of the old logits, then weight alignment of the new classes."""

    summary = "replay with distillation, then new classes scaled to the old ones' mean length"
    implementation = "grace.methods.wa:WA"
    traits = Traits(freezes_old_network=True)

    name: Literal["wa"] = "wa"
    update: Recipe = Field(
        default_factory=lambda: multistep(170, 60, 100, 140),
        description="recipe of every later task",
    )
    temperature: float = Field(2.0, gt=0, description="T: softmax temperature of the distillation")


class JointSettings(BaseMethodSettings):
    """Upper bound: a fresh network on all images of all seen classes, with the base recipe."""

    summary = "upper bound: a fresh network on all images of all seen classes"
    implementation = "grace.methods.joint:Joint"
    traits = Traits(memory="all images", learns_known_classes=True)

    name: Literal["joint"] = "joint"
    final_task_only: bool = Field(
        False, description="train at the last task only, as studies do: earlier tasks are skipped"
    )


class GraceSettings(BaseMethodSettings):
    """GRACE: grow a provisional backbone, assess the mergeable one, compress if there is room."""

    summary = "grow a provisional backbone, assess the mergeable one, compress where there is room"
    implementation = "grace.methods.grace:Grace"
    traits = Traits(freezes_old_network=True, learns_known_classes=True)

    name: Literal["grace"] = "grace"
    grow: Recipe = Field(
        default_factory=lambda: multistep(170, 80, 120, 150), description="recipe of Grow"
    )
    compress: Recipe = Field(
        default_factory=lambda: Recipe(epochs=130, schedule="cosine"),
        description="recipe of Compress",
    )
    auxiliary_weight: float = Field(
        1.0, ge=0, description="weight of the auxiliary head's loss in Grow (Eq. 3: 1)"
    )
    threshold: float = Field(
        0.6, ge=0, le=1, description="τ₁: saturation from which the network expands"
    )
    threshold_decay: float = Field(
        0.96, gt=0, le=1, description="ρ: factor on the threshold after each compression"
    )
    assess_on: Literal["current", "previous"] = Field(
        "current",
        description="current: after Grow, on this task's images and exemplars (the paper); "
        "previous: at the end of the task before, on its augmented images (released behaviour)",
    )
    expand_at: tuple[int, ...] | None = Field(
        None,
        description="tasks (from 2) that expand, all others compress; saturation is only recorded",
    )
    gamma: float = Field(5.0, gt=0, description="γ: exponent of the power mean of P and B")
    initialisation: Literal["importance", "average", "merge", "provisional", "random"] = Field(
        "importance",
        description="student backbone: weighted by w, by 1/2, a copy of one backbone, or fresh",
    )
    logit_distillation: bool = Field(True, description="use the KL term of Compress")
    feature_distillation: bool = Field(True, description="use the MSE term of Compress")
    logit_weight: float = Field(0.4, ge=0, description="α: weight of logit distillation")
    feature_weight: float = Field(1.6, ge=0, description="β: weight of feature distillation")
    temperature: float = Field(2.0, gt=0, description="T: softmax temperature of the distillation")
    scale_cross_entropy: bool = Field(
        True,
        description="keep the factor 1 - λ on the cross-entropy when both distillations are off",
    )

    @model_validator(mode="after")
    def _expansions_are_later_tasks(self) -> Self:
        tasks = self.expand_at
        if tasks is not None and (list(tasks) != sorted(set(tasks)) or any(t < 2 for t in tasks)):
            raise ValueError(f"expand_at {list(tasks)} must increase and start at task 2 or later")
        return self

    @property
    @override
    def threshold_rule(self) -> ThresholdRule:
        return ThresholdRule(initial=self.threshold, decay=self.threshold_decay)

    @override
    def idle_settings(self) -> Mapping[str, str]:
        logits, features = self.logit_distillation, self.feature_distillation
        idle: dict[str, str] = {}
        if self.expand_at is not None:
            idle |= dict.fromkeys(("threshold", "threshold_decay"), "method.expand_at decides")
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


BUILT_IN: Sequence[type[AnyMethodSettings]] = (
    GraceSettings,
    DERSettings,
    FosterSettings,
    MemoSettings,
    WASettings,
    ICaRLSettings,
    ReplaySettings,
    EWCSettings,
    FinetuneSettings,
    JointSettings,
)
"""The methods of this package, in the order of lists and figures; put new ones at the end."""
