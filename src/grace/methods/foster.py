"""FOSTER: boost the old network with a second backbone, then distil both into one (spec §3.7).

Where this departs from the paper (Wang et al., ECCV 2022) or fills its gaps:

1. n_c of the class weights is the number of a class's images in the phase, M // K_old for old
   classes that have as many.
2. The student is reported and chooses the exemplars; with ``herd_with="teacher"`` the boosted
   network chooses them. It is tested beside the student in any case.
3. The class means of nearest mean of exemplars are the student's.
4. A classifier that is saved keeps its teacher, which no later task needs, for the sake of that
   comparison. Under a ceiling on the learner's bytes the teacher goes as soon as it has taught.
5. Batches have 128 images in every protocol; 256 are published for ImageNet-100 B50I10.
6. A task without a new class is refused: there is nothing to boost.
"""

from collections.abc import Collection, Mapping
from typing import ClassVar, final

import torch
from torch import Tensor
from typing_extensions import override

from grace.configs.methods import FosterSettings
from grace.data.images import LabelledImages
from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss, Phase
from grace.methods.base import Classifier, Method, Outcome, Steps, network_bytes
from grace.methods.workshop import Workshop
from grace.networks.expandable import ExpandableNetwork, copy_of
from grace.objectives.balancing import effective_number_weights
from grace.objectives.classification import cross_entropy
from grace.objectives.distillation import balanced_distillation, soft_distillation

_TEACHER = "teacher."


@final
class Foster(Method[FosterSettings]):
    """One backbone between tasks, the student; ``teacher`` is the network that it learnt from."""

    freezes_old_network: ClassVar[bool] = True

    def __init__(
        self, settings: FosterSettings, workshop: Workshop, memory: ExemplarMemory
    ) -> None:
        super().__init__(settings, workshop, memory)
        self.teacher: ExpandableNetwork | None = None

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        boosted = yield from self._boost(task)
        self.network = yield from self._compress(task, boosted)
        self.teacher = boosted
        return Outcome(verdict="compress")

    def _boost(self, task: Task) -> Steps[ExpandableNetwork]:
        """Fit what the frozen old network leaves, with a new backbone that starts as its copy.

        L = CE(z ⊘ w, y) + CE(z_fe, y) + λ_okd·KDsoft(z[:, :K_old], z_old, T): the whole grown head
        learns, and a head over the new features alone; w weighs classes by β₁.
        """
        old, settings, data = self.network, self.settings, self.with_exemplars(task)
        new = copy_of(self.single_backbone)
        width = old.feature_dim + new.feature_dim
        head = self.workshop.grown_head(old.head, width, task.num_classes, "main", task.number)
        feature_head = self.class_head(task, new.feature_dim, "features")
        beta = settings.boosting_beta[: task.number - 1][-1]
        weights = self._class_weights(task, data, beta)

        def objective(batch: Batch) -> dict[str, Loss]:
            features, old_features = batch.learned[0], batch.frozen[0]
            logits = head(torch.cat([old_features, features], dim=1))
            distillation = soft_distillation(
                logits[:, : task.num_old_classes], old.head(old_features), settings.temperature
            )
            return {
                "classification": Loss(cross_entropy(logits / weights, batch.labels)),
                "features": Loss(cross_entropy(feature_head(features), batch.labels)),
                "distillation": Loss(distillation, settings.distillation_weight),
            }

        yield Phase(
            name="boost",
            backbones=[new],
            heads=[head, feature_head],
            frozen=list(old.backbones),
            objective=objective,
            recipe=settings.boost,
            data=data,
        )
        return ExpandableNetwork([*old.backbones, new], head)

    def _compress(self, task: Task, boosted: ExpandableNetwork) -> Steps[ExpandableNetwork]:
        """Distil the boosted network into a student that starts as the old one; no hard labels.

        L = −Σ_c q_c · log σ(z_S/T)_c with q ∝ w ⊙ σ(z_T/T), where w weighs classes by β₂.
        """
        data, settings = self.with_exemplars(task), self.settings
        student = copy_of(self.single_backbone)
        head = self.workshop.grown_head(
            self.network.head, student.feature_dim, task.num_classes, "student", task.number
        )
        weights = self._class_weights(task, data, settings.compression_beta)

        def objective(batch: Batch) -> dict[str, Loss]:
            targets = boosted.head(torch.cat(list(batch.frozen), dim=1))
            logits = head(batch.learned[0])
            loss = balanced_distillation(logits, targets, weights, settings.temperature)
            return {"distillation": Loss(loss)}

        yield Phase(
            name="compress",
            backbones=[student],
            heads=[head],
            frozen=list(boosted.backbones),
            objective=objective,
            recipe=settings.compress,
            data=data,
            teacher=boosted,
        )
        return ExpandableNetwork([student], head)

    @override
    def remember(self, task: Task, herd_with: ExpandableNetwork | None = None) -> Steps[None]:
        if self.settings.herd_with == "teacher":
            herd_with = self.teacher
        yield from super().remember(task, herd_with)
        if not self._keeps_teacher:
            self.teacher = None

    def _class_weights(self, task: Task, data: LabelledImages, beta: float) -> Tensor:
        """Weights w (K,) of a phase's classes; the forgotten ones, without images, have 1."""
        counts = torch.bincount(data.labels, minlength=task.num_classes)
        live = [index for index in range(task.num_classes) if index not in task.forgotten]
        weights = torch.ones(task.num_classes)
        weights[live] = effective_number_weights(counts[live], beta)
        return weights.to(self.workshop.device.torch_device)

    @override
    def classifiers(self) -> Mapping[str, Classifier]:
        """Name the predictors, the student's head first."""
        found = dict(super().classifiers())
        if self.teacher is not None:
            found["teacher"] = Classifier(self.teacher.extractors, self.teacher.head)
        return found

    @override
    def forget(self, classes: Collection[int]) -> None:
        super().forget(classes)
        if self.teacher is not None:
            self.teacher.head.mask(classes)

    @property
    def _keeps_teacher(self) -> bool:
        return self.memory.settings.max_mb is None

    @override
    def bytes_after(self, task: Task, *, grows: bool) -> int:
        num_bytes = super().bytes_after(task, grows=grows)
        if self._keeps_teacher and task.number > 1:
            num_bytes += network_bytes(self.network, 1, task.num_classes)
        return num_bytes

    @override
    def own_parts(self) -> Mapping[str, Mapping[str, Tensor]]:
        parts = self.teacher.parts() if self.teacher is not None else {}
        return {_TEACHER + name: part for name, part in parts.items()}

    @override
    def restore_parts(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        own = dict(parts)
        learnt = bool(super().classifiers())
        classes = self.network.head.num_classes if learnt else 0
        self.teacher = self.restored_network(own, classes, _TEACHER) if learnt else None
        super().restore_parts(own)
