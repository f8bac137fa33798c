"""MEMO: one new last stage per task over a trunk that all tasks share.

Algorithm. DER, but each task adds a last stage only. 1. First task: one backbone and head; its last
stage is the first *specialised block*, the stages before it are the *generalised block*. 2. Later:
copy the last block, grow the head, and train both with an auxiliary head; old blocks stay frozen,
the generalised block trains or not (``train_base``). 3. Align the head. 4. Herd exemplars.

Where this departs from the paper (Zhou et al., ICLR 2023) or fills its gaps:

1. The new specialised block starts as a full copy of the last one, as DER's backbones do.
2. With ``train_base`` the generalised block trains in later tasks too, and the frozen old
   specialised blocks see inputs that drift. The authors' code does so; their survey's scripts only
   if the first task is no larger than the others.
3. The first task trains an uncut backbone's weights with the recipe that the other methods use.
4. A task without a new class is refused: there is nothing to specialise in.

Expect accuracy a little below DER's with four fifths of its parameters.

Source: Zhou, Wang, Ye, Zhan, *A Model or 603 Exemplars: Towards Memory-Efficient Class-Incremental
Learning*, ICLR 2023, arXiv:2205.13218.
"""

from typing import final

from pydantic import Field
from typing_extensions import override

from grace.data.scenario import Task
from grace.methods.growth import grow
from grace.methods.method import Method, Outcome, Steps
from grace.settings.method import AligningSettings, Traits
from grace.settings.recipe import Recipe, multistep


@final
class Memo(Method):
    """Memory-efficient expandable model: the generalised block is the network's trunk.

    Its specialised blocks, one per task, are the network's backbones.
    """

    traits = Traits(grows_every_task=True, shares_trunk=True, freezes_old_network=True)

    variants = {"frozen": {"train_base": False}}

    class Settings(AligningSettings):
        grow: Recipe = multistep(170, 80, 120, 150)
        """recipe of every later task"""
        auxiliary_weight: float = Field(1.0, ge=0)
        """weight of the auxiliary head's loss. Higher: new features separate new from old classes
        more; 0: no auxiliary loss"""
        train_base: bool = True
        """true: the shared trunk trains in later tasks too, and old blocks see inputs that drift;
        false: it is frozen after the first task"""

    settings: Settings

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        """Train one more specialised block, and the generalised one if ``train_base`` says so."""
        settings = self.settings
        self.network = yield from grow(
            self, task, settings.grow, settings.auxiliary_weight, trains_trunk=settings.train_base
        )
        return Outcome(verdict="grow", reason="memo adds a last stage with every update")
