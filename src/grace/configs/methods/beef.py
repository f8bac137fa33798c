"""Settings of BEEF, with the published values as defaults."""

from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from typing_extensions import override

from grace.configs.methods.method_settings import BaseMethodSettings
from grace.configs.recipe import Recipe
from grace.configs.traits import Traits


class BeefSettings(BaseMethodSettings):
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
        description="recipe of the fusion that follows, in which α and β alone train",
    )
    energy_weight: float = Field(
        0.01,
        ge=0,
        description="weight of the energy loss: more makes the module surer of what it has not "
        "seen, at the cost of what it has; 0 leaves the energy out, and most of the time with it",
    )
    energy_steps: int = Field(
        3,
        ge=0,
        description="steps that move an energy sample away from the rotated image that it starts "
        "as: more cost a forward and half a backward pass each",
    )
    energy_lr: float = Field(
        1e-2,
        ge=0,
        description="step size of the energy samples: larger ones end nearer to what the module "
        "takes for a class",
    )
    energy_noise: float = Field(
        1e-3,
        ge=0,
        description="standard deviation, in normalised pixels, of the noise after each of those "
        "steps: more spreads the samples out",
    )
    alignment: float = Field(
        1.7,
        gt=0,
        description="divisor of the old tasks' logits while a module trains: above 1 they grow "
        "by as much, which favours old classes when it is taken away; 1 changes nothing",
    )
    old_bias: Literal["sum", "newest"] = Field(
        "sum",
        description="bias of an old class: sum, over all modules, like its weights (the paper); "
        "newest, that of the newest module alone (released behaviour)",
    )
    old_batch_norm: Literal["eval", "train"] = Field(
        "eval",
        description="batch norm of what does not train: eval leaves it as it is; train, but for "
        "the first backbone, normalises by the batch and moves (released behaviour)",
    )

    @override
    def idle_settings(self) -> Mapping[str, str]:
        idle = ("energy_steps", "energy_lr", "energy_noise")
        if self.energy_weight == 0:
            return dict.fromkeys(idle, "method.energy_weight is 0")
        if self.energy_steps == 0:
            return dict.fromkeys(idle[1:], "method.energy_steps is 0")
        return {}
