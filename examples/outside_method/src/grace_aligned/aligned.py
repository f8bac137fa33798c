"""Aligned: replay, then the new classes' weights scaled to the old ones' mean length.

Departures. 1. Weight alignment follows distillation in its paper; here there is none.

Source: Rebuffi et al., CVPR 2017 (replay); Zhao et al., CVPR 2020 (weight alignment).
"""

from typing import final

from typing_extensions import override

from grace.data.scenario import Task
from grace.methods.method import Method, Outcome, Steps
from grace.nn.heads import align_weights
from grace.settings.method import BaseMethodSettings
from grace.settings.recipe import Recipe, multistep


@final
class Aligned(Method):
    """Replay whose newest rows of the head get the mean length of the old ones."""

    class Settings(BaseMethodSettings):
        update: Recipe = multistep(70, 30, 50)
        """recipe of every later task"""

    settings: Settings

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        self.grow_head(task)
        data = self.with_exemplars(task)
        yield self.classification_phase("update", self.settings.update, data)
        align_weights(self.network.head, task.num_new_classes)
        return Outcome(verdict="train", reason="one backbone learns on, and its head is aligned")
