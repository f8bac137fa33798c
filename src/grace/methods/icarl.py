"""iCaRL: replay with distillation, classified by the nearest mean of exemplars.

Algorithm. 1. First task: one backbone and head, cross-entropy. 2. Later: a frozen copy of the
network is the teacher; grow the head, and train everything on new images and exemplars with
``L = CE(z, y) + KD(z[:, :K_old], z_teacher, T)``. 3. Herd exemplars, and compute the mean feature
of each class again. The class with the nearest mean is predicted; a probability is the softmax of
the negative squared distances, which lie between 0 and 4, so that it ranks and is never near 1.

Where this departs from the paper (Rebuffi et al., CVPR 2017):

1. Softmax cross-entropy over all logits and softened distillation of the old ones (T = 2, no
   factor T²) replace the paper's sigmoid of each class.
2. The class means are those of the exemplars as they are; mirrored ones are not added.
3. All K classes have ``memory.size // K`` exemplars, those of a known class are herded again from
   stored and new images. A task of known classes only is learnt like any other, all its logits
   being distilled.

Expect accuracy above Replay's head, below DER's and GRACE's. The nearest mean treats old and new
classes alike. The linear head is recorded beside it. ``memory.size=0`` is refused.

Source: Rebuffi, Kolesnikov, Sperl, Lampert, *iCaRL: Incremental Classifier and Representation
Learning*, CVPR 2017, arXiv:1611.07725.
"""

from collections.abc import Mapping
from typing import final

from pydantic import Field
from typing_extensions import override

from grace.base.errors import GraceError
from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.methods.distilling import distil_old_self
from grace.methods.method import Classifier, Method, Outcome, Steps
from grace.methods.module_factory import ModuleFactory
from grace.settings.method import NOT_ZERO, SmoothingSettings, Traits
from grace.settings.recipe import Recipe, multistep


@final
class ICaRL(Method):
    """One backbone and one growing head, which is for training; exemplars classify."""

    traits = Traits(freezes_old_network=True, learns_known_classes=True)

    class Settings(SmoothingSettings):
        needs = (("temperature", "distillation_weight", NOT_ZERO),)

        update: Recipe = multistep(170, 80, 120)
        """recipe of every later task"""
        distillation_weight: float = Field(1.0, ge=0)
        """weight of the old logits' distillation beside the cross-entropy. Higher: less is
        forgotten and new classes are learnt less well; 0: no distillation"""
        temperature: float = Field(2.0, gt=0)
        """T: softmax temperature of the distillation. Higher: small probabilities of the teacher
        count more"""

    settings: Settings

    def __init__(self, settings: Settings, factory: ModuleFactory, memory: ExemplarMemory) -> None:
        super().__init__(settings, factory, memory)
        if memory.settings.size == 0 and memory.settings.per_class is None:
            raise GraceError(
                "icarl classifies by its exemplars and memory.size is 0",
                "set it to at least the number of classes, or choose another method",
            )

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        yield from distil_old_self(
            self,
            task,
            self.settings.update,
            temperature=self.settings.temperature,
            classification_weight=1.0,
            distillation_weight=self.settings.distillation_weight,
        )
        return Outcome(verdict="train", reason="icarl keeps to one backbone")

    @override
    def classifiers(self) -> Mapping[str, Classifier]:
        """Name the predictors, nearest mean of exemplars first."""
        found = super().classifiers()
        return {name: found[name] for name in sorted(found, key=lambda name: name == "linear")}
