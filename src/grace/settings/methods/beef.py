"""Settings of BEEF, with the published values as defaults."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from typing_extensions import override

from grace.settings.methods.method_settings import PriorSettings
from grace.settings.recipe import Recipe
from grace.settings.traits import Traits


class BeefSettings(PriorSettings):
    """One new module per task, trained alone with an energy objective, then fused (BEEF)."""

    summary = "one new module per task, trained alone with an energy objective, then fused"
    implementation = "grace.methods.beef:Beef"
    traits = Traits(grows_every_task=True, freezes_old_network=True)

    name: Literal["beef"] = "beef"
    base: Recipe = Field(
        default_factory=lambda: Recipe(epochs=200, schedule="cosine", weight_decay=5e-4),
        description="recipe of the first task",
    )
    expand: Recipe = Field(
        default_factory=lambda: Recipe(epochs=170, schedule="cosine", weight_decay=5e-4),
        description="recipe of every later task's new module",
    )
    fuse: Recipe = Field(
        default_factory=lambda: Recipe(epochs=60, lr=0.05, schedule="cosine", weight_decay=5e-4),
        description="recipe of the fusion that follows; it trains α and β only",
    )
    energy_weight: float = Field(
        0.01,
        ge=0,
        description="η: weight of the energy loss. Higher: the module gives less confidence to "
        "images unlike its own, and fits its own less; 0: no energy loss, which "
        "saves most of the time",
    )
    energy_steps: int = Field(
        3,
        ge=0,
        description="gradient steps from the rotated image to the energy sample. More: samples "
        "are closer to what the module takes for a class; each step costs a forward "
        "and half a backward pass",
    )
    energy_lr: float = Field(
        1e-2,
        ge=0,
        description="size of these steps. Higher: samples move further from the rotated image",
    )
    energy_noise: float = Field(
        1e-3,
        ge=0,
        description="standard deviation of the noise after each step, in normalised pixels. "
        "Higher: samples are spread out more",
    )
    alignment: float = Field(
        1.7,
        gt=0,
        description="divisor of the old tasks' logits while a module trains. Higher: old "
        "classes are favoured more in predictions, where the divisor is absent; 1: "
        "no effect. Without effect with a class_prior, which corrects the same",
    )
    old_bias: Literal["sum", "newest"] = Field(
        "sum",
        description="bias of an old class. sum: over all modules, like its weights (the paper); "
        "newest: that of the newest module alone (released behaviour)",
    )
    old_batch_norm: Literal["eval", "train"] = Field(
        "eval",
        description="batch norm of frozen backbones. eval: unchanged; train: all but the first "
        "normalise by the batch and update their statistics (released behaviour)",
    )

    @override
    def idle_settings(self) -> Mapping[str, str]:
        idle: dict[str, str] = {}
        samples = ("energy_steps", "energy_lr", "energy_noise")
        if self.energy_weight == 0:
            idle |= dict.fromkeys(samples, "method.energy_weight is 0")
        elif self.energy_steps == 0:
            idle |= dict.fromkeys(samples[1:], "method.energy_steps is 0")
        if self.class_prior != "none":
            idle["alignment"] = f"method.class_prior is {self.class_prior}"
        return idle
