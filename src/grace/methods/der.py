"""DER: one new backbone per task beside the frozen old ones.

Algorithm. 1. First task: one backbone and head, cross-entropy. 2. Later: copy the last backbone,
grow the head, and train both with a new auxiliary head, ``L = CE(f(x), y) + CE(f_aux(x), y_aux)``.
All old backbones stay frozen, batch-norm statistics included. 3. Align the new rows of the head to
the mean length of the old ones. 4. Herd exemplars with the features of all backbones together.

Where this departs from the paper:

1. No channel masks and no pruning: every backbone keeps its full size.
2. A new backbone starts as a full copy of the last one.
3. Weight alignment replaces the paper's second, balanced stage.

Expect accuracy at or near the top, and one more backbone for every task. GRACE is DER with
compression. A task without a new class is refused, because there is nothing to grow for.

Source: Yan, Xie, He, *DER: Dynamically Expandable Representation for Class Incremental Learning*,
CVPR 2021, arXiv:2103.16788.
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
