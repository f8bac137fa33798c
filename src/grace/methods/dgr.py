"""DGR: reweight the gradients of the head by what each class has got so far.

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
6. Forgotten classes count nowhere. If no old class is left, a task is learnt as a first one is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, sqrt
from typing import final

import torch
from torch import Tensor
from typing_extensions import override

from grace.configs.methods import DGRSettings
from grace.configs.recipe import Recipe
from grace.data.images import LabelledImages
from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss, LossGradients, Phase
from grace.methods.base import Method, Outcome, Steps, frozen_network, single
from grace.networks.expandable import ExpandableNetwork, copy_of
from grace.objectives.imbalance import (
    distribution_aware_distillation,
    log_prior,
    lost_direction,
    lost_evenness,
    prior_adjusted_cross_entropy,
)
from grace.objectives.reweighting import (
    accumulated_norms,
    class_gradient_weights,
    distillation_factor,
    weighted_rows,
)


@final
@dataclass(frozen=True)
class HeadGradients:
    """The rule for the head's gradients; all other parameters keep those of L.

    It asks for the gradients of single losses by the head alone, which need no pass through the
    backbone. The phase's state holds Φ as ``norms`` (K,), from 0 at its start.

    Args:
        old: indices of the old classes; without any there is no loss "distillation".
        new: indices of the new classes.
        discount: γ.
    """

    old: Tensor
    new: Tensor
    discount: float

    def __call__(self, gradients: LossGradients) -> Mapping[str, Tensor]:
        """Add to Φ; give the gradients of ``head.weight`` and ``head.bias``."""
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
    """What the formulas of a phase count.

    Args:
        present: n_c, images of each class in the phase, (K,).
        lost: r_c, images that each old class has had and the phase lacks, (K_old,).
        old: indices of the old classes but the forgotten ones.
        num_seen: n_seen, images that these have had in all.
        num_new: n_new, images of the new classes.
    """

    present: Tensor
    lost: Tensor
    old: Sequence[int]
    num_seen: int
    num_new: int


@final
class DGR(Method[DGRSettings]):
    """One backbone and one growing head; the network of before the task is its teacher."""

    @override
    def first_task(self, task: Task) -> Steps[Outcome]:
        self.network = self.fresh_network(task)
        yield self._phase("base", self.settings.base, task, task.data)
        return Outcome(verdict="base")

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        teacher = copy_of(self.network) if task.num_live_old else None
        self.grow_head(task)
        data = self.with_exemplars(task)
        yield self._phase("update", self.settings.update, task, data, teacher)
        return Outcome(verdict="update")

    def _phase(
        self,
        name: str,
        recipe: Recipe,
        task: Task,
        data: LabelledImages,
        teacher: ExpandableNetwork | None = None,
    ) -> Phase:
        """L = CE(z + log π, y) + β·DAKD(z[:, :K_old], z_teacher, T), by ``HeadGradients``."""
        device, temperature = self.workshop.device.torch_device, self.settings.temperature
        counts = self._count(task, data)
        prior = log_prior(counts.present).to(device)
        direction = lost_direction(counts.lost).to(device)
        evenness = lost_evenness(counts.lost[counts.old]).to(device)
        if not self.settings.distribution_aware:
            evenness = torch.ones_like(evenness)
        weight = self._distillation_weight(task, counts)

        def objective(batch: Batch) -> dict[str, Loss]:
            logits = batch["head"]
            loss = prior_adjusted_cross_entropy(logits, batch.labels, prior)
            if teacher is None:
                return {"classification": Loss(loss)}
            kept = distribution_aware_distillation(
                logits[:, : len(direction)], batch["old.head"], direction, evenness, temperature
            )
            return {"classification": Loss(loss), "distillation": Loss(kept, weight)}

        return Phase(
            name=name,
            parts=({} if teacher is None else frozen_network(teacher)) | single(self.network),
            objective=objective,
            recipe=recipe,
            data=data,
            rule=HeadGradients(
                torch.tensor(counts.old, dtype=torch.int64, device=device),
                torch.tensor(task.new_classes, dtype=torch.int64, device=device),
                self._discount(task, counts),
            ),
            state={"norms": torch.zeros(task.num_classes, device=device)},
        )

    def _count(self, task: Task, data: LabelledImages) -> Counts:
        present = torch.bincount(data.labels, minlength=task.num_classes)
        # This task's images of known classes are among these too.
        originals = self.memory.original_counts
        had = [originals.get(index, 0) for index in range(task.num_old_classes)]
        seen = torch.tensor(had, dtype=torch.int64)
        old = [index for index in range(task.num_old_classes) if index not in task.forgotten]
        return Counts(
            present=present,
            lost=(seen - present[: task.num_old_classes]).clamp_min(0),
            old=old,
            num_seen=int(seen[old].sum()),
            num_new=int(present[task.num_old_classes :].sum()),
        )

    def _distillation_weight(self, task: Task, counts: Counts) -> float:
        """β, with the factor T² where it counts images."""
        settings = self.settings
        if settings.distillation_by == "classes":
            return settings.distillation_weight * task.num_live_old / task.num_new_classes
        growth = sqrt(counts.num_seen / counts.num_new)
        return settings.distillation_weight * growth * settings.temperature**2

    def _discount(self, task: Task, counts: Counts) -> float:
        """γ: exp of less the share of what was seen before, of images or of classes."""
        if self.settings.discount_by == "classes":
            return exp(-task.num_live_old / task.num_live)
        return exp(-counts.num_seen / (counts.num_seen + counts.num_new))
