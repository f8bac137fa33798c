"""CREATE: each class has a small auto-encoder; the one that reconstructs best is predicted.

Where this departs from the paper (Chen et al., CVPR 2025) and its released code, or fills their
gaps:

1. All auto-encoders are two tensors and two matrix products, not one module for each class.
2. An image without another of its class in the batch adds nothing to L_CR, but counts in its mean.
   For stability the largest similarity is subtracted, that of an image with itself included: only
   then does the limit of −95 matter. It has no gradient.
3. If all scores of an image are equal, s is 0 and ω is 2.
4. The balanced stage takes the stored exemplars of old classes, and as many images of each new one
   as the old class with most has. Fresh images of old classes are used in the update only. The
   stage is left out without exemplars.
5. ``balance_batch_norm="train"`` updates the backbone's running statistics but not its weights, as
   the released code does.
6. A task without a new class is learnt like any other, all scores being distilled; its balanced
   stage sees the stored exemplars alone.
7. Forgotten classes have no scores and do not count in the K of L_CR. Without old classes that are
   not forgotten there is no teacher.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import final

import torch
from typing_extensions import override

from grace.data.images import LabelledImages
from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss, Objective, Part
from grace.methods.classification import class_prior
from grace.methods.herding import balanced, balanced_size
from grace.methods.method import Method, Outcome, Steps
from grace.methods.network_parts import frozen_network
from grace.methods.planning import Coming, PlannedPhase
from grace.nn.autoencoders import AutoEncoders
from grace.nn.expandable import copy_of
from grace.nn.heads import Head
from grace.nn.losses.confusion import (
    confusion_aware_contrast,
    confusion_weights,
    floored_cross_entropy,
)
from grace.nn.losses.distillation import soft_distillation
from grace.settings.methods import CreateSettings
from grace.settings.recipe import Recipe


@final
class Create(Method[CreateSettings]):
    """One backbone, and a head of auto-encoders; old auto-encoders train further."""

    @override
    def first_task(self, task: Task) -> Steps[Outcome]:
        self.network = self.fresh_network(task)
        objective = self._objective(task, task.data)
        yield self.classification_phase("base", self.settings.base, task.data, objective)
        return Outcome(verdict="start")

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        settings, data = self.settings, self.with_exemplars(task)
        teacher = copy_of(self.network) if task.num_old_remembered else None
        old = {} if teacher is None else frozen_network(teacher)
        self.grow_head(task)
        distils = teacher is not None
        objective = self._objective(task, data, distils=distils)
        update = self.classification_phase("update", self._update_recipe(task), data, objective)
        yield replace(update, parts={**old, **update.parts})
        if len(self.memory) > 0:
            seed = self.factory.settings.seeds.exemplars
            data = yield from balanced(self.memory, task, self.network, seed)
            objective = self._objective(task, data, distils=distils)
            balance = self.classification_phase("balance", settings.balance, data, objective)
            still = Part(self.network.backbone, trains=False, mode=settings.balance_batch_norm)
            yield replace(balance, parts={**old, **balance.parts, "backbone.0": still})
        return Outcome(verdict="train", reason="create keeps to one backbone")

    def _objective(self, task: Task, data: LabelledImages, *, distils: bool = False) -> Objective:
        """L = −mean log p_y + λ·T²·KDsoft(e[:, :K_old], e_teacher, T) + L_CR, p = σ(e) + 1e-10."""
        settings, head = self.settings, self.network.head
        assert isinstance(head, AutoEncoders)
        device = self.factory.device.torch_device
        prior = class_prior(self.settings, self.factory, task, data)
        compared = torch.tensor(task.remembered_classes, device=device)

        def objective(batch: Batch) -> dict[str, Loss]:
            scores, labels = batch["head"], batch.labels
            confusion = confusion_weights(scores[:, compared], settings.confusion_sharpness)
            # The latents are cheap to compute a second time beside the scores'.
            contrast = confusion_aware_contrast(
                batch.everyone(head.encode(batch["backbone.0"])),
                batch.everyone(labels),
                batch.everyone(confusion),
                task.num_remembered,
                settings.contrast_temperature,
                settings.contrast_base_temperature,
            )
            losses = {
                "classification": Loss(floored_cross_entropy(scores, labels, prior)),
                "contrast": Loss(contrast, settings.contrast_weight, over="batch"),
            }
            if distils:
                old_scores, temperature = scores[:, : task.num_old_outputs], settings.temperature
                value = soft_distillation(old_scores, batch["old.head"], temperature)
                weight = settings.distillation_weight * temperature**2
                losses["distillation"] = Loss(value, weight)
            return losses

        return objective

    def _update_recipe(self, task: Task) -> Recipe:
        """Return the recipe of a later task, with a lower rate from ``late_task`` on."""
        settings, recipe = self.settings, self.settings.update
        if task.number < settings.late_task:
            return recipe
        lr = recipe.lr * settings.late_factor
        return recipe.model_copy(update={"lr": lr, "min_lr": min(recipe.min_lr, lr)})

    @staticmethod
    @override
    def make_head(
        settings: CreateSettings,
        in_features: int,
        num_classes: int,
        draws: torch.Generator | None,
    ) -> Head:
        """Make the auto-encoders of all classes."""
        return AutoEncoders(
            in_features,
            num_classes,
            draws,
            latent_dim=settings.latent_dim,
            scale=settings.score_scale,
        )

    @override
    def plan(self, coming: Coming) -> Sequence[PlannedPhase]:
        """Plan the phases; the balanced stage costs two passes without training."""
        plan = super().plan(coming)
        if coming.is_first:
            return plan
        num_images = balanced_size(self.memory, coming)
        balance = replace(plan[1], num_images=num_images, trained=0, frozen=2)
        return [plan[0], balance] if len(self.memory) else plan[:1]
