"""Settings of DER, with the published values as defaults."""

from typing import Literal

from pydantic import Field

from grace.settings.methods.method_settings import AligningSettings
from grace.settings.recipe import Recipe, multistep
from grace.settings.traits import Traits


class DERSettings(AligningSettings):
    """One new backbone per task beside the frozen old ones (DER without pruning)."""

    summary = "one new backbone per task beside the frozen old ones"
    implementation = "grace.methods.der:DER"
    traits = Traits(grows_every_task=True, freezes_old_network=True, takes_frozen_trunk=True)

    name: Literal["der"] = "der"
    grow: Recipe = Field(
        default_factory=lambda: multistep(170, 80, 120, 150),
        description="recipe of every later task",
    )
    auxiliary_weight: float = Field(
        1.0,
        ge=0,
        description="weight of the auxiliary head's loss. Higher: new features separate new "
        "from old classes more; 0: no auxiliary loss",
    )
