"""Settings of every method: one frozen model each, with the published values as defaults."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from grace.configs._base import Settings
from grace.configs.recipe import Recipe, completed, first_task, multistep


class BaseMethodSettings(Settings):
    """What every method has: a name and the recipe of its first task."""

    base: Recipe = Field(default_factory=first_task, description="recipe of the first task")

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


class FinetuneSettings(BaseMethodSettings):
    """Lower bound: each task's own images, no memory, loss on the new logits only."""

    name: Literal["finetune"] = "finetune"
    update: Recipe = Field(
        default_factory=lambda: multistep(80, 40, 70), description="recipe of every later task"
    )


class ReplaySettings(BaseMethodSettings):
    """Finetune with the exemplars mixed in and the loss over all logits."""

    name: Literal["replay"] = "replay"
    update: Recipe = Field(
        default_factory=lambda: multistep(70, 30, 50), description="recipe of every later task"
    )


class DERSettings(BaseMethodSettings):
    """One new backbone per task beside the frozen old ones (DER without pruning)."""

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

    name: Literal["ewc"] = "ewc"
    update: Recipe = Field(
        default_factory=lambda: multistep(180, 70, 120, 150),
        description="recipe of every later task",
    )
    penalty_weight: float = Field(1000.0, ge=0, description="λ: weight of the penalty Ω")
    importance_limit: float = Field(
        1e-4, gt=0, description="upper limit of a parameter's importance F; belongs to λ = 1000"
    )


class ICaRLSettings(BaseMethodSettings):
    """Replay with distillation of the old logits, classified by nearest mean of exemplars."""

    name: Literal["icarl"] = "icarl"
    update: Recipe = Field(
        default_factory=lambda: multistep(170, 80, 120), description="recipe of every later task"
    )
    distillation_weight: float = Field(
        1.0, ge=0, description="weight of the old logits' distillation beside the cross-entropy"
    )
    temperature: float = Field(2.0, gt=0, description="T: softmax temperature of the distillation")


class WASettings(BaseMethodSettings):
    """Replay with distillation of the old logits, then weight alignment of the new classes."""

    name: Literal["wa"] = "wa"
    update: Recipe = Field(
        default_factory=lambda: multistep(170, 60, 100, 140),
        description="recipe of every later task",
    )
    temperature: float = Field(2.0, gt=0, description="T: softmax temperature of the distillation")


class JointSettings(BaseMethodSettings):
    """Upper bound: a fresh network on all images of all seen classes, with the base recipe."""

    name: Literal["joint"] = "joint"
    final_task_only: bool = Field(
        False, description="train at the last task only, as studies do: earlier tasks are skipped"
    )


class GraceSettings(BaseMethodSettings):
    """GRACE: grow a provisional backbone, assess the mergeable one, compress if there is room."""

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


MethodSettings = Annotated[
    FinetuneSettings
    | ReplaySettings
    | DERSettings
    | FosterSettings
    | MemoSettings
    | EWCSettings
    | ICaRLSettings
    | WASettings
    | GraceSettings
    | JointSettings,
    Field(discriminator="name"),
]
