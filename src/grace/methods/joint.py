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

    @override
    def learn(self, task: Task) -> Steps[Outcome]:
        if self.settings.final_task_only and not task.is_last:
            self.keep(task.data)
            return Outcome(verdict="skip")
        self.network = self.fresh_network(task)
        data = self.with_exemplars(task)
        yield self.classification_phase("base", self.settings.base, data)
        self.keep(task.data)
        return Outcome(verdict="base")
