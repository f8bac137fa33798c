"""Settings of FOSTER, with the published values as defaults."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator
from typing_extensions import override

from grace.base.errors import GraceError
from grace.settings.methods.method_settings import SmoothingSettings
from grace.settings.recipe import Recipe
from grace.settings.traits import Traits

Beta = Annotated[float, Field(ge=0, lt=1)]
"""β of class weights. 0: equal weights; near 1: inversely proportional to numbers of images."""


class FosterSettings(SmoothingSettings):
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
        description="β₁ of task 2, 3, …, each in [0, 1); the last value is for all further "
        "tasks. Higher: boosting gives classes with few images more weight; 0: "
        "equal weights",
    )
    compression_beta: float = Field(
        0.97,
        ge=0,
        lt=1,
        description="β₂. Higher: the compression gives classes with few images more weight; 0: "
        "equal weights",
    )
    distillation_weight: float = Field(
        1.0,
        ge=0,
        description="λ_okd: weight of the old logits' distillation in boosting. Higher: less is "
        "forgotten and new classes are learnt less well; 0: no distillation",
    )
    temperature: float = Field(
        2.0,
        gt=0,
        description="T: softmax temperature of both distillations. Higher: small probabilities "
        "of the teacher count more",
    )
    herd_with: Literal["student", "teacher"] = Field(
        "student", description="the network whose features choose the exemplars"
    )

    @override
    def idle_settings(self) -> Mapping[str, str]:
        by_prior = f"method.class_prior is {self.class_prior}"
        return {} if self.class_prior == "none" else {"boosting_beta": by_prior}

    @field_validator("boosting_beta", mode="before")
    @classmethod
    def _one_value_is_enough(cls, value: Any) -> Any:  # noqa: ANN401 - whatever was read
        if value in ((), []):
            raise GraceError("needs the value of task 2 at least")
        return (value,) if isinstance(value, int | float) else value
