"""Finetune: keep training one network on each new task alone; the lower bound (spec §3.1)."""

from functools import partial
from typing import ClassVar, final

from typing_extensions import override

from grace.configs.methods import FinetuneSettings
from grace.data.scenario import Task
from grace.methods.base import Method, Outcome, Steps
from grace.objectives.classification import new_class_cross_entropy


@final
class Finetune(Method[FinetuneSettings]):
    """One backbone, one growing head, no memory; later tasks see their own logits only.

    Old rows of the head get no gradient but do get weight decay.
    """

    uses_memory: ClassVar[bool] = False

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        self.grow_head(task)
        loss = partial(new_class_cross_entropy, num_old=task.num_old_classes)
        yield self.classification_phase("update", self.settings.update, task.data, loss)
        return Outcome(verdict="update")
