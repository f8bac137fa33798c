"""MEMO: a new last stage for every task over a trunk that all tasks share.

Where this departs from the paper (Zhou et al., ICLR 2023) or fills its gaps:

1. The new specialised block starts as a full copy of the last one, as DER's backbones do.
2. With ``train_base`` the generalised block trains in later tasks too, and the frozen old
   specialised blocks see inputs that drift. The authors' code does so; their survey's scripts only
   if the first task is no larger than the others.
3. The first task trains an uncut backbone's weights with the recipe that the other methods use.
4. A task without a new class is refused: there is nothing to specialise in.
"""

from typing import final

from typing_extensions import override

from grace.data.scenario import Task
from grace.methods.growth import grow
from grace.methods.method import Method, Outcome, Steps
from grace.settings.methods import MemoSettings


@final
class Memo(Method[MemoSettings]):
    """Memory-efficient expandable model: the generalised block is the network's trunk.

    Its specialised blocks, one per task, are the network's backbones.
    """

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        """Train one more specialised block, and the generalised one if ``train_base`` says so."""
        settings = self.settings
        self.network = yield from grow(
            self,
            task,
            settings.grow,
            settings.auxiliary_weight,
            trains_trunk=settings.train_base,
        )
        return Outcome(verdict="grow", reason="memo adds a last stage with every update")
