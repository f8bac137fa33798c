"""DER: a new backbone for every task beside the frozen old ones, without pruning."""

from typing import final

from typing_extensions import override

from grace.data.scenario import Task
from grace.methods.growth import grow
from grace.methods.method import Method, Outcome, Steps
from grace.settings.methods import DERSettings


@final
class DER(Method[DERSettings]):
    """Dynamically expandable representation: GRACE that never compresses."""

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        settings = self.settings
        self.network = yield from grow(self, task, settings.grow, settings.auxiliary_weight)
        return Outcome(verdict="grow", reason="der adds a backbone with every update")
