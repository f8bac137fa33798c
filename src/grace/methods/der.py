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

    @override
    def learn(self, task: Task) -> Steps[Outcome]:
        if task.number == 1:
            outcome = yield from self.first_task(task)
        else:
            self.refuse_without_new_class(task)
            self.network = yield from grow(
                self, task, self.settings.grow, self.settings.auxiliary_weight
            )
            outcome = Outcome(verdict="grow")
        yield from self.remember(task)
        return outcome
