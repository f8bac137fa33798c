"""DER: a new backbone for every task beside the frozen old ones (spec §3.6, without pruning)."""

from typing import ClassVar, final

from typing_extensions import override

from grace.configs.methods import DERSettings
from grace.data.scenario import Task
from grace.methods.base import Method, Outcome, Steps
from grace.methods.growth import grow


@final
class DER(Method[DERSettings]):
    """Dynamically expandable representation: GRACE that never compresses."""

    adds_backbones: ClassVar[bool] = True
    freezes_old_network: ClassVar[bool] = True

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        settings = self.settings
        self.network = yield from grow(self, task, settings.grow, settings.auxiliary_weight)
        return Outcome(verdict="grow")
