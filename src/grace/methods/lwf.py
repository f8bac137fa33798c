"""LwF: each task's own images, the old network's answers to them kept by distillation.

Algorithm. 1. First task: one network. 2. Later: the head grows by fresh rows; a frozen copy of the
network is the teacher, ``L = CE(new logits, y − K_old) + w·KD(old logits, teacher, T)``. Nothing is
stored.

Departures. 1. All classes share one growing head, and a test image is told by all logits: the
class-incremental form (Li and Hoiem know the task of a test image). 2. KD has no factor T². 3. The
old rows are not trained apart first. 4. A task of one new class is not learnt, as its cross-entropy
is 0; a task of known classes only is refused.

Expect accuracies a little above Finetune's: without stored images, old and new logits are never
compared.

Source: Li and Hoiem, ECCV 2016, arXiv:1606.09282.
"""

from typing import final

from pydantic import Field
from typing_extensions import override

from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss, Phase
from grace.methods.classification import new_class_loss
from grace.methods.method import Method, Outcome, Steps
from grace.methods.network_parts import frozen_network, trained_network
from grace.nn.expandable import copy_of
from grace.nn.losses.distillation import soft_distillation
from grace.settings.method import BaseMethodSettings, Traits
from grace.settings.recipe import Recipe, multistep


@final
class LwF(Method):
    """One backbone, one growing head, no memory."""

    traits = Traits(memory="none", compares_new_classes_only=True, freezes_old_network=True)

    class Settings(BaseMethodSettings):
        base: Recipe = multistep(200, 60, 120, 160, weight_decay=5e-4)
        """recipe of the first task"""
        update: Recipe = multistep(250, 60, 120, 180, 220)
        """recipe of every later task"""
        distillation_weight: float = Field(3.0, ge=0)
        """w. Higher: less is forgotten and new classes are learnt less well; 0: Finetune"""
        temperature: float = Field(2.0, gt=0)
        """T: softmax temperature of the distillation. Higher: small probabilities of the teacher
        count more"""

    settings: Settings

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        num_old, temperature = task.num_old_outputs, self.settings.temperature
        parts = frozen_network(copy_of(self.network))
        self.grow_head(task)

        def objective(batch: Batch) -> dict[str, Loss]:
            logits = batch["head"]
            kept = soft_distillation(logits[:, :num_old], batch["old.head"], temperature)
            return {
                "classification": new_class_loss(logits, batch.labels, num_old),
                "distillation": Loss(kept, self.settings.distillation_weight),
            }

        yield Phase(
            name="update",
            parts=parts | trained_network(self.network),
            objective=objective,
            recipe=self.settings.update,
            data=task.data,
        )
        return Outcome(verdict="train", reason="lwf keeps to one backbone")
