"""Finetune: lower bound: one network trained on each task's own images alone."""

from typing import final

from typing_extensions import override

from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss
from grace.methods.classification import new_class_loss
from grace.methods.method import Method, Outcome, Steps
from grace.settings.method import BaseMethodSettings, Traits
from grace.settings.recipe import Recipe, multistep


@final
class Finetune(Method):
    """One backbone, one growing head, no memory; later tasks see their own logits only.

    Old rows of the head get no gradient but do get weight decay.
    """

    traits = Traits(memory="none", compares_new_classes_only=True)

    class Settings(BaseMethodSettings):
        update: Recipe = multistep(80, 40, 70)
        """recipe of every later task"""

    settings: Settings

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        self.grow_head(task)

        def objective(batch: Batch) -> dict[str, Loss]:
            loss = new_class_loss(batch["head"], batch.labels, task.num_old_outputs)
            return {"classification": loss}

        yield self.classification_phase("update", self.settings.update, task.data, objective)
        return Outcome(verdict="train", reason="finetune keeps to one backbone")
