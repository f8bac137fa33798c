"""Aligned: Replay, then weight alignment of the new classes' rows.

Where this departs from its sources:

1. Weight alignment follows distillation in its paper; here there is none.
"""

from typing import final

from typing_extensions import override

from grace.data.scenario import Task
from grace.methods.method import Method, Outcome, Steps
from grace.nn.heads import align_weights
from grace_aligned.settings import AlignedSettings


@final
class Aligned(Method[AlignedSettings]):
    """Replay whose newest rows of the head get the mean length of the old ones."""

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        self.grow_head(task)
        data = self.with_exemplars(task)
        yield self.classification_phase("update", self.settings.update, data)
        align_weights(self.network.head, task.num_new_classes)
        return Outcome(verdict="train", reason="one backbone learns on, and its head is aligned")
