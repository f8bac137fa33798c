"""Settings of MEMO, with the published values as defaults."""

from typing import Literal

from pydantic import Field

from grace.settings.methods.method_settings import AligningSettings
from grace.settings.recipe import Recipe, multistep
from grace.settings.traits import Traits


class MemoSettings(AligningSettings):
    """One new last stage per task over a trunk that all tasks share (MEMO)."""

    summary = "one new last stage per task over a trunk that all tasks share"
    implementation = "grace.methods.memo:Memo"
    traits = Traits(grows_every_task=True, shares_trunk=True, freezes_old_network=True)

    name: Literal["memo"] = "memo"
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
    train_base: bool = Field(
        True,
        description="true: the shared trunk trains in later tasks too, and old blocks see "
        "inputs that drift; false: it is frozen after the first task",
    )
