"""Replay: one network trained on each task's images and the exemplars."""

from typing import final

from typing_extensions import override

from grace.data.scenario import Task
from grace.methods.classification import plain_objective
from grace.methods.method import Method, Outcome, Steps
from grace.settings.method import SmoothingSettings, Traits
from grace.settings.recipe import Recipe, multistep


@final
class Replay(Method):
    """One backbone and one growing head, trained on new images and exemplars over all logits."""

    traits = Traits(learns_known_classes=True)

    class Settings(SmoothingSettings):
        update: Recipe = multistep(70, 30, 50)
        """recipe of every later task"""

    settings: Settings

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        self.grow_head(task)
        data = self.with_exemplars(task)
        objective = plain_objective(self.settings, self.factory, task, data)
        yield self.classification_phase("update", self.settings.update, data, objective)
        return Outcome(verdict="train", reason="replay keeps to one backbone")
