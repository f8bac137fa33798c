"""FOSTER: boost the old network with a second backbone, distil both into one student.

Algorithm. 1. First task: one backbone and head, cross-entropy. 2. *Boost*: a copy of the backbone
learns beside the frozen old network; logits are divided by class weights, the new features have a
head of their own, and the old logits are distilled. 3. *Compress*: a student that starts as the old
network learns the boosted network's answers, reweighted by class. 4. Herd exemplars.

Where this departs from the paper (Wang et al., ECCV 2022) or fills its gaps:

1. n_c of the class weights is the number of a class's images in the phase, M // K_old for old
   classes that have as many.
2. The student is reported and chooses the exemplars; with ``herd_with="teacher"`` the boosted
   network chooses them. It is tested beside the student in any case.
3. The class means of nearest mean of exemplars are the student's.
4. The teacher is saved for that comparison, although no later task needs it. Under a ceiling on
   the learner's bytes it is deleted after Compress.
5. Batches have 128 images in every protocol; 256 are published for ImageNet-100 B50I10.
6. A task without a new class is refused: there is nothing to boost.

Expect as many parameters as Replay's, and accuracy above iCaRL's and below DER's. A task costs two
phases, the second with two frozen backbones.

Source: Wang, Zhou, Ye, Zhan, *FOSTER: Feature Boosting and Compression for Class-Incremental
Learning*, ECCV 2022, arXiv:2204.04662. Class weights: Cui et al., CVPR 2019.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, final

import torch
from pydantic import Field, field_validator
from torch import Tensor
from typing_extensions import override

from grace.base.errors import GraceError
from grace.data.images import LabelledImages
from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss, Part, Phase
from grace.methods.classification import class_loss
from grace.methods.method import Classifier, Method, Outcome, Steps
from grace.methods.module_factory import ModuleFactory
from grace.methods.network_parts import frozen_network
from grace.methods.planning import Coming, PlannedPhase, with_teacher
from grace.methods.slots import NetworkSlot
from grace.nn.expandable import ExpandableNetwork, copy_of
from grace.nn.losses.balance import effective_number_weights
from grace.nn.losses.distillation import balanced_distillation, soft_distillation
from grace.settings.method import SmoothingSettings, Traits
from grace.settings.recipe import Recipe


@final
class Foster(Method):
    """One backbone between tasks, the student; ``teacher`` is the boosted network of two."""

    traits = Traits(freezes_old_network=True)

    class Settings(SmoothingSettings):
        needs = (("boosting_beta", "class_prior", "none"),)

        base: Recipe = Recipe(epochs=200, schedule="cosine", weight_decay=5e-4)
        """recipe of the first task"""
        boost: Recipe = Recipe(epochs=170, schedule="cosine", weight_decay=5e-4)
        """recipe of boosting, in every later task"""
        compress: Recipe = Recipe(epochs=130, schedule="cosine", weight_decay=0.0)
        """recipe of the compression that follows"""
        boosting_beta: tuple[Annotated[float, Field(ge=0, lt=1)], ...] = (0.96,)
        """β₁ of task 2, 3, …, each in [0, 1); the last value is for all further tasks. Higher:
        boosting gives classes with few images more weight; 0: equal weights"""
        compression_beta: float = Field(0.97, ge=0, lt=1)
        """β₂. Higher: the compression gives classes with few images more weight; 0: equal weights
        """
        distillation_weight: float = Field(1.0, ge=0)
        """λ_okd: weight of the old logits' distillation in boosting. Higher: less is forgotten and
        new classes are learnt less well; 0: no distillation"""
        temperature: float = Field(2.0, gt=0)
        """T: softmax temperature of both distillations. Higher: small probabilities of the teacher
        count more"""
        herd_with: Literal["student", "teacher"] = "student"
        """the network whose features choose the exemplars"""

        @field_validator("boosting_beta", mode="before")
        @classmethod
        def _one_value_is_enough(cls, value: Any) -> Any:  # noqa: ANN401 - whatever was read
            if value in ((), []):
                raise GraceError("needs the value of task 2 at least")
            return (value,) if isinstance(value, int | float) else value

    settings: Settings

    def __init__(self, settings: Settings, factory: ModuleFactory, memory: ExemplarMemory) -> None:
        super().__init__(settings, factory, memory)
        self._keeps_teacher = memory.settings.max_mb is None
        self.teacher = NetworkSlot("teacher.", num_more=1)
        if self._keeps_teacher:
            self.state.add(self.teacher)

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        boosted = yield from self._boost(task)
        self.network = yield from self._compress(task, boosted)
        self.teacher.value = boosted
        return Outcome(
            verdict="compress", reason="foster makes one backbone of two with every update"
        )

    def _boost(self, task: Task) -> Steps[ExpandableNetwork]:
        """Train a new backbone, a copy of the old one, on what the frozen old network gets wrong.

        L = CE(z ⊘ w, y) + CE(z_fe, y) + λ_okd·KDsoft(z[:, :K_old], z_old, T): the whole grown head
        learns, and a head over the new features alone; w weighs classes by β₁. With a class prior,
        w is 1 and both heads' logits get the prior.
        """
        old, settings, data = self.network, self.settings, self.with_exemplars(task)
        new = copy_of(old.backbone)
        width = old.feature_dim + new.feature_dim
        head = self.factory.grown_head(old.head, width, task.num_classes, "main", task.number)
        feature_head = self.class_head(task, new.feature_dim, "features")
        beta = settings.boosting_beta[: task.number - 1][-1]
        classify = class_loss(self.settings, self.factory, task, data)
        weights = self._class_weights(task, data, beta if settings.class_prior == "none" else 0)

        def objective(batch: Batch) -> dict[str, Loss]:
            logits, labels = batch["head"], batch.labels
            distillation = soft_distillation(
                logits[:, : task.num_old_outputs], batch["old.head"], settings.temperature
            )
            return {
                "classification": Loss(classify(logits / weights, labels)),
                "features": Loss(classify(batch["features"], labels)),
                "distillation": Loss(distillation, settings.distillation_weight),
            }

        yield Phase(
            name="boost",
            parts=frozen_network(old)
            | {
                "new": Part(new),
                "head": Part(head, ["old.0", "new"]),
                "features": Part(feature_head, ["new"]),
            },
            objective=objective,
            recipe=settings.boost,
            data=data,
        )
        return ExpandableNetwork([*old.backbones, new], head)

    def _compress(self, task: Task, boosted: ExpandableNetwork) -> Steps[ExpandableNetwork]:
        """Distil the boosted network into a student that starts as the old one; without labels.

        L = −Σ_c q_c · log σ(z_S/T)_c with q ∝ w ⊙ σ(z_T/T), where w weighs classes by β₂.
        """
        data, settings = self.with_exemplars(task), self.settings
        student = copy_of(self.network.backbone)
        head = self.factory.grown_head(
            self.network.head, student.feature_dim, task.num_classes, "student", task.number
        )
        weights = self._class_weights(task, data, settings.compression_beta)

        def objective(batch: Batch) -> dict[str, Loss]:
            loss = balanced_distillation(
                batch["head"], batch["old.head"], weights, settings.temperature
            )
            return {"distillation": Loss(loss)}

        yield Phase(
            name="compress",
            parts=frozen_network(boosted)
            | {"student": Part(student), "head": Part(head, ["student"])},
            objective=objective,
            recipe=settings.compress,
            data=data,
            teacher=boosted,
        )
        return ExpandableNetwork([student], head)

    @override
    def remember(self, task: Task, herd_with: ExpandableNetwork | None = None) -> Steps[None]:
        if self.settings.herd_with == "teacher":
            herd_with = self.teacher.value
        yield from super().remember(task, herd_with)
        if not self._keeps_teacher:
            self.teacher.value = None

    def _class_weights(self, task: Task, data: LabelledImages, beta: float) -> Tensor:
        """Return the weights w (K,) of a phase's classes; forgotten ones have 1."""
        counts = torch.bincount(data.labels, minlength=task.num_classes)
        remembered = task.remembered_classes
        weights = torch.ones(task.num_classes)
        weights[remembered] = effective_number_weights(counts[remembered], beta)
        return weights.to(self.factory.device.torch_device)

    @override
    def classifiers(self) -> Mapping[str, Classifier]:
        """Name the predictors, the student's head first."""
        found = dict(super().classifiers())
        teacher = self.teacher.value
        if teacher is not None:
            found["teacher"] = Classifier(teacher.extractors, teacher.head)
        return found

    @override
    def plan(self, coming: Coming) -> Sequence[PlannedPhase]:
        return with_teacher(super().plan(coming), "compress")
