"""DER: one new backbone per task beside the frozen old ones."""

from typing import final

from pydantic import Field
from typing_extensions import override

from grace.data.scenario import Task
from grace.methods.growth import grow
from grace.methods.method import Method, Outcome, Steps
from grace.settings.method import AligningSettings, Traits
from grace.settings.recipe import Recipe, multistep


@final
class DER(Method):
    """Dynamically expandable representation: GRACE that never compresses."""

    traits = Traits(grows_every_task=True, freezes_old_network=True, takes_frozen_trunk=True)

    class Settings(AligningSettings):
        grow: Recipe = multistep(170, 80, 120, 150)
        """recipe of every later task"""
        auxiliary_weight: float = Field(1.0, ge=0)
        """weight of the auxiliary head's loss. Higher: new features separate new from old classes
        more; 0: no auxiliary loss"""

    settings: Settings

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        settings = self.settings
        self.network = yield from grow(self, task, settings.grow, settings.auxiliary_weight)
        return Outcome(verdict="grow", reason="der adds a backbone with every update")
