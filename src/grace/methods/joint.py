"""Joint: upper bound: a fresh network on all images of all seen classes.

Algorithm. Each task trains a new backbone and head on all images of all seen classes, with the
recipe of the first task. No image is thrown away: its trait ``memory="all images"`` says so.

Departures: none, it is not a published method.

Expect *Last* above that of every method with one backbone; methods with several have more
parameters and may come close. ``method.final_task_only=true`` trains at the last task alone, which
is enough for *Last*; *Avg* and forgetting are then empty.

Source: the usual upper bound.
"""

from collections.abc import Sequence
from typing import final

from typing_extensions import override

from grace.data.scenario import Task
from grace.methods.classification import plain_objective
from grace.methods.method import Method, Outcome, Steps
from grace.methods.planning import Coming, PlannedPhase
from grace.settings.method import SmoothingSettings, Traits


@final
class Joint(Method):
    """Trains from scratch at every task, or at the last only; its memory keeps every image."""

    traits = Traits(memory="all images", learns_known_classes=True)

    exceptions = {"changes": {"base": "the upper bound starts a fresh network at every task"}}

    class Settings(SmoothingSettings):
        final_task_only: bool = False
        """true: train at the last task only, as studies do, and skip all earlier tasks"""

    settings: Settings

    @override
    def first_task(self, task: Task) -> Steps[Outcome]:
        if self.settings.final_task_only and not task.is_last:
            return Outcome(
                verdict="skip", reason="joint waits for the last update (final_task_only)"
            )
        self.network = self.fresh_network(task)
        data = self.with_exemplars(task)
        objective = plain_objective(self.settings, self.factory, task, data)
        yield self.classification_phase("base", self.settings.base, data, objective)
        return Outcome(verdict="start", reason="joint trains one network on all images")

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        """Start again with all images seen so far."""
        return self.first_task(task)

    @override
    def plan(self, coming: Coming) -> Sequence[PlannedPhase]:
        num_images = coming.num_seen + coming.num_images
        epochs = self.settings.base.epochs
        return [PlannedPhase(name="base", epochs=epochs, num_images=num_images)]
