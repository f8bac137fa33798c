"""WA: replay with distillation, then new classes scaled to the old ones' mean length.

Algorithm. 1. First task: one backbone and head, cross-entropy. 2. Later: a frozen copy of the
network is the teacher; grow the head, and train everything on new images and exemplars with
``L = (1 − λ)·CE(z, y) + λ·KD(z[:, :K_old], z_teacher, T)``, λ = K_old/K. 3. Multiply the new rows
of the head by the mean length of the old rows over that of the new ones. 4. Herd exemplars.

Where this departs from the paper (Zhao et al., CVPR 2020):

1. The head's weights are not forced to be positive; alignment scales them as they are.
2. The distillation is the cross-entropy with the softened teacher, T = 2, without the factor T².
3. λ = K_old/K counts classes, not images. A task without a new class is refused: λ would be 1, and
   its images would not be learnt.

Expect accuracy above Replay's with the same single network. In late tasks λ is near 0.9, so that
the cross-entropy is weak: this is intended.

Source: Zhao, Xiao, Gan, Zhang, Xia, *Maintaining Discrimination and Fairness in Class Incremental
Learning*, CVPR 2020, arXiv:1911.07053.
"""

from typing import final

from pydantic import Field
from typing_extensions import override

from grace.data.scenario import Task
from grace.methods.distilling import distil_old_self
from grace.methods.method import Method, Outcome, Steps
from grace.nn.heads import align_weights
from grace.nn.losses.distillation import distillation_share
from grace.settings.method import AligningSettings, Traits
from grace.settings.recipe import Recipe, multistep


@final
class WA(Method):
    """One backbone and one growing head; L = (1 − λ)·CE + λ·KDsoft, then weight alignment.

    The aligned network is the next task's teacher.
    """

    traits = Traits(freezes_old_network=True)

    class Settings(AligningSettings):
        update: Recipe = multistep(170, 60, 100, 140)
        """recipe of every later task"""
        temperature: float = Field(2.0, gt=0)
        """T: softmax temperature of the distillation. Higher: small probabilities of the teacher
        count more"""

    settings: Settings

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        share = distillation_share(task.num_old_remembered, task.num_remembered)
        yield from distil_old_self(
            self,
            task,
            self.settings.update,
            temperature=self.settings.temperature,
            classification_weight=1 - share,
            distillation_weight=share,
        )
        if self.settings.aligns_weights:
            align_weights(self.network.head, task.num_new_classes)
        return Outcome(verdict="train", reason="wa keeps to one backbone")
