"""DGR: replay with distillation, the head's gradients reweighted class by class.

Algorithm. 1. First task: cross-entropy with log π added to the logits, where π is a class's share
of the images. 2. Later: a frozen copy is the teacher; grow the head, and train everything on new
images and exemplars, with distillation that grows with the images that are lost. 3. In every step,
each row of the head's gradient is weighted by the sum of its gradients so far, and the gradient of
the distillation is scaled to that of the classification. 4. Herd exemplars.

Where this departs from the paper (He, CVPR 2024) and its released code, or fills their gaps:

1. The training pipeline is that of all methods: no image is held out, augmentation, normalisation
   and backbone are the experiment's, and the quota is ``memory.size // K`` for every class.
2. One head grows, with the draws and biases that all methods share; the released code adds a
   sub-head of PyTorch's default draws for every task.
3. π counts the images that are there; a class that has none counts as one of one image.
4. The evenness R adds 0.001 to every number of lost images, so that it is exactly 1 if all classes
   have lost as many, also if none has lost any. It is 1 too where there is one old class.
5. Images of known classes count as old in n_seen, and a class has lost what it has had in all less
   what the phase has. A task without a new class is refused: β would be infinite.
6. Forgotten classes count nowhere. If no old class is left, the rule is that of a first task.

Expect as many parameters as Replay's, and accuracy close to FOSTER's. A task costs as much as WA's.

Source: He, *Gradient Reweighting: Towards Imbalanced Class-Incremental Learning*, CVPR 2024,
arXiv:2402.18528.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, sqrt
from typing import Literal, final

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grace.data.images import LabelledImages
from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss, LossGradients, Objective, Phase
from grace.methods.method import Method, Outcome, Steps
from grace.methods.network_parts import frozen_network, trained_network
from grace.nn.expandable import copy_of
from grace.nn.losses.balance import (
    accumulated_norms,
    class_gradient_weights,
    distillation_factor,
    distribution_aware_distillation,
    log_prior,
    lost_direction,
    lost_evenness,
    weighted_rows,
)
from grace.nn.losses.classification import cross_entropy
from grace.settings.method import NOT_ZERO, BaseMethodSettings, Traits
from grace.settings.recipe import Recipe, multistep


@final
@dataclass(frozen=True)
class HeadGradients:
    """The rule that computes the head's gradients; all other parameters keep those of L.

    It needs the gradients of single losses for the head only, without a pass through the backbone.
    The phase's state holds Φ as ``norms`` (K,), 0 at the start.

    Args:
        old: indices of the old classes, shape (K_old,); empty: no distillation.
        new: indices of the new classes, shape (K_new,).
        discount: γ. Lower: new rows of the head learn more slowly.
    """

    old: Tensor
    new: Tensor
    discount: float

    def __call__(self, gradients: LossGradients) -> Mapping[str, Tensor]:
        """Add to Φ; return the gradients of ``head.weight`` (K, D) and ``head.bias`` (K,)."""
        head = ("head.weight", "head.bias")
        learns = gradients.of(["classification"], head)
        norms = gradients.state["norms"]
        norms.copy_(accumulated_norms(norms, learns["head.weight"]))
        weights = class_gradient_weights(norms, self.old, self.new, self.discount)
        found = {name: weighted_rows(weights, learns[name]) for name in head}
        if len(self.old) == 0:
            return found
        keeps = gradients.of(["distillation"], head)
        factor = distillation_factor(found["head.weight"], keeps["head.weight"])
        return {name: found[name] + factor * keeps[name] for name in head}


@final
@dataclass(frozen=True)
class Counts:
    """Numbers of images and classes in a phase's formulas.

    Args:
        present: n_c, images of each class in the phase, (K,).
        lost: r_c, images of each old class that were seen and are not in the phase, (K_old,).
        old: indices of the old classes that are not forgotten.
        num_seen: n_seen, images that these classes have had in all.
        num_new: n_new, images of the new classes.
    """

    present: Tensor
    lost: Tensor
    old: Sequence[int]
    num_seen: int
    num_new: int


@final
class DGR(Method):
    """One backbone and one growing head; the network from before the task is the teacher."""

    traits = Traits(freezes_old_network=True)

    class Settings(BaseMethodSettings):
        needs = (
            ("distillation_by|distribution_aware|temperature", "distillation_weight", NOT_ZERO),
        )

        base: Recipe = multistep(160, 80, 120, weight_decay=5e-4)
        """recipe of the first task"""
        update: Recipe = multistep(160, 80, 120, weight_decay=5e-4)
        """recipe of every later task"""
        distillation_weight: float = Field(0.7, ge=0)
        """λ: factor of β, the weight of the distillation. Higher: the backbone forgets less and
        learns new classes less well; the head is the same for every λ above 0; 0: no distillation
        """
        distillation_by: Literal["images", "classes"] = "images"
        """formula of β. images: λ·sqrt(n_seen/n_new)·T² (released behaviour); classes:
        λ·K_old/K_new"""
        distribution_aware: bool = True
        """true: classes that lost more images are distilled more strongly; false: all classes are
        distilled alike"""
        temperature: float = Field(2.0, gt=0)
        """T: softmax temperature of the distillation. Higher: small probabilities of the teacher
        count more"""
        discount_by: Literal["images", "classes"] = "images"
        """formula of γ, a factor on the gradients of the head's new rows. images:
        exp(−n_seen/(n_seen + n_new)) (released behaviour); classes: exp(−K_old/K)"""

    settings: Settings

    @override
    def first_task(self, task: Task) -> Steps[Outcome]:
        """L = CE(z + log π, y), the head's gradients reweighted."""
        self.network = self.fresh_network(task)
        counts = self._count(task, task.data)
        objective = self._classification(counts)
        phase = self.classification_phase("base", self.settings.base, task.data, objective)
        yield self._reweighted(phase, task, counts)
        return Outcome(verdict="start")

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        """L = CE(z + log π, y) + β·DAKD(z[:, :K_old], z_teacher, T), with the same rule."""
        teacher = copy_of(self.network)
        self.grow_head(task)
        data = self.with_exemplars(task)
        counts = self._count(task, data)
        learns, keeps = self._classification(counts), self._distillation(task, counts)
        phase = Phase(
            name="update",
            parts=frozen_network(teacher) | trained_network(self.network),
            objective=lambda batch: {**learns(batch), **keeps(batch)},
            recipe=self.settings.update,
            data=data,
        )
        yield self._reweighted(phase, task, counts)
        return Outcome(verdict="train", reason="dgr keeps to one backbone")

    def _count(self, task: Task, data: LabelledImages) -> Counts:
        num_old = task.num_old_outputs
        present = torch.bincount(data.labels, minlength=task.num_classes)
        # This task's images of known classes are among these too.
        originals = self.memory.original_counts
        seen = torch.tensor([originals.get(c, 0) for c in range(num_old)], dtype=torch.int64)
        old = [index for index in task.remembered_classes if index < num_old]
        lost = (seen - present[:num_old]).clamp_min(0)
        return Counts(present, lost, old, int(seen[old].sum()), int(present[num_old:].sum()))

    def _classification(self, counts: Counts) -> Objective:
        prior = log_prior(counts.present).to(self.factory.device.torch_device)

        def objective(batch: Batch) -> dict[str, Loss]:
            loss = cross_entropy(batch["head"], batch.labels, prior)
            return {"classification": Loss(loss)}

        return objective

    def _distillation(self, task: Task, counts: Counts) -> Objective:
        """DAKD with weight β, which has the factor T² if β counts images."""
        settings, device = self.settings, self.factory.device.torch_device
        direction = lost_direction(counts.lost).to(device)
        evenness = lost_evenness(counts.lost[counts.old]).to(device)
        if not settings.distribution_aware:
            evenness = torch.ones_like(evenness)
        growth = sqrt(counts.num_seen / counts.num_new) * settings.temperature**2
        if settings.distillation_by == "classes":
            growth = task.num_old_remembered / task.num_new_classes

        def objective(batch: Batch) -> dict[str, Loss]:
            old, teacher = batch["head"][:, : task.num_old_outputs], batch["old.head"]
            loss = distribution_aware_distillation(
                old, teacher, direction, evenness, settings.temperature
            )
            return {"distillation": Loss(loss, settings.distillation_weight * growth)}

        return objective

    def _reweighted(self, phase: Phase, task: Task, counts: Counts) -> Phase:
        """Add the rule to a phase, with γ = exp(−share of images seen before) and Φ = 0."""
        share = counts.num_seen / (counts.num_seen + counts.num_new)
        if self.settings.discount_by == "classes":
            share = task.num_old_remembered / task.num_remembered
        device = self.factory.device.torch_device
        old = torch.tensor(counts.old, dtype=torch.int64, device=device)
        new = torch.tensor(task.new_classes, dtype=torch.int64, device=device)
        norms = torch.zeros(task.num_classes, device=device)
        return replace(phase, rule=HeadGradients(old, new, exp(-share)), state={"norms": norms})
