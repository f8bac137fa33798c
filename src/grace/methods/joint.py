"""Joint: a fresh network on all images of all seen classes; the upper bound."""

from typing import ClassVar, final

from typing_extensions import override

from grace.configs.methods import JointSettings
from grace.data.scenario import Task
from grace.methods.base import Method, Outcome, Steps


@final
class Joint(Method[JointSettings]):
    """Training from scratch at every task, or at the last only; its memory keeps every image."""

    keeps_all_images: ClassVar[bool] = True
    learns_known_classes: ClassVar[bool] = True

    @override
    def first_task(self, task: Task) -> Steps[Outcome]:
        if self.settings.final_task_only and not task.is_last:
            return Outcome(verdict="skip")
        self.network = self.fresh_network(task)
        yield self.classification_phase("base", self.settings.base, self.with_exemplars(task))
        return Outcome(verdict="base")

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        """Start again, as if all images there ever were had come at once."""
        return self.first_task(task)
