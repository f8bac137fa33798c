"""Replay: one network trained on each task's images and the exemplars.

Algorithm. 1. First task: one backbone and head, cross-entropy. 2. Later: grow the head, and train
everything on new images and exemplars, with cross-entropy over all logits. 3. Herd exemplars.

Departures from other forms of this baseline:

1. Exemplars are not drawn more often than new images: the imbalance is not corrected.
2. Later tasks are shorter than those of the other methods, as in the published recipe.

Expect accuracy far above Finetune's, below DER's and GRACE's. The head favours new classes. The
nearest mean of exemplars, also in the record, has less of this bias.

Source: the rehearsal baseline of the field, with herding after Rebuffi et al., *iCaRL*, CVPR 2017,
arXiv:1611.07725.
"""

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
