"""Finetune: lower bound: one network trained on each task's own images alone.

Algorithm. 1. First task: one backbone and head, cross-entropy. 2. Later: grow the head, and train
everything on the new images, with cross-entropy over the new logits only. Old rows of the head get
no gradient, but weight decay still changes them.

Departures: none known. Another common form of this baseline has cross-entropy over all logits.

Expect *Last* near the accuracy on the last task times its share of all classes. A task without a
new class is refused, because the loss would have no logit. A single new class has nothing to be
compared with and is not learnt. Images of known classes in a later task have no effect.

Source: the naive baseline of the field.
"""

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
