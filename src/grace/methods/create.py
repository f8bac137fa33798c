"""CREATE: a small auto-encoder for every class, the best reconstruction wins.

Algorithm. The auto-encoder of a class reconstructs an image's features; the class with the smallest
error is predicted. 1. First task: one backbone and an auto-encoder for every class, identification
and contrastive loss. 2. *Update*: add auto-encoders, and train everything on new images and
exemplars, the old scores distilled. 3. *Balance*: the auto-encoders alone learn on equally many
images of every class. 4. Herd exemplars.

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

Expect accuracy below DER's with one backbone, and slowly: scores separate late, and the balanced
stage has a low learning rate, so that small data need many epochs.

Source: Chen et al., CVPR 2025, arXiv:2503.17677.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, final

import torch
from pydantic import Field
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
from grace.settings.method import NOT_ZERO, PriorSettings, Traits
from grace.settings.recipe import Recipe


@final
class Create(Method):
    """One backbone, and a head of auto-encoders; old auto-encoders train further."""

    traits = Traits(freezes_old_network=True, learns_known_classes=True)

    exceptions = {
        "changes": {"balance": "goes on with the auto-encoders that update has left"},
        "chooses": {"balance": "trains on as many images of each class"},
    }

    class Settings(PriorSettings):
        needs = (
            ("late_task", "late_factor", r"(?!1(\.0)?$).+"),
            ("temperature", "distillation_weight", NOT_ZERO),
            ("contrast_.*temperature|confusion_sharpness", "contrast_weight", NOT_ZERO),
        )

        base: Recipe = Recipe(epochs=200, schedule="cosine", weight_decay=5e-4)
        """recipe of the first task"""
        update: Recipe = Recipe(epochs=120, schedule="cosine", weight_decay=5e-4, min_lr=1e-8)
        """recipe of every later task"""
        balance: Recipe = Recipe(epochs=20, lr=0.005, schedule="cosine", weight_decay=5e-4)
        """recipe of the balanced stage that follows; it trains the auto-encoders only"""
        late_task: int = Field(5, ge=2)
        """from this task on, the learning rate of update is multiplied by late_factor. Higher: more
        tasks change the backbone fast"""
        late_factor: float = Field(0.1, gt=0, le=1)
        """that factor. Lower: late tasks change the backbone less"""
        latent_dim: int = Field(32, ge=1)
        """H: latent width of each auto-encoder. Higher: better reconstructions, of other classes'
        features too, and 2·(feature width) more parameters each"""
        score_scale: float = Field(0.1, gt=0)
        """factor from a reconstruction's L1 error to its score. Higher: more confident predictions
        """
        distillation_weight: float = Field(1.0, ge=0)
        """λ: weight of the old scores' distillation, the factor T² not included. Higher: less is
        forgotten and new classes are learnt less well; 0: no distillation"""
        temperature: float = Field(2.0, gt=0)
        """T: softmax temperature of the distillation. Higher: small probabilities of the teacher
        count more"""
        contrast_weight: float = Field(1.0, ge=0)
        """weight of L_CR. Higher: the latents of classes are further apart; 0: no L_CR"""
        contrast_temperature: float = Field(0.1, gt=0)
        """τ of L_CR. Lower: the most similar images count more"""
        contrast_base_temperature: float = Field(0.07, gt=0)
        """τ_b of L_CR, which is multiplied by τ/τ_b. Lower: L_CR counts more"""
        confusion_sharpness: float = Field(4.0, ge=0)
        """a: how fast an image's extra weight in L_CR falls as its two best scores differ more. 0:
        weight 2 for all images; higher: extra weight for the most confused images only"""
        balance_batch_norm: Literal["train", "eval"] = "train"
        """batch norm of the backbone in the balanced stage. train: normalises by the batch and
        updates its statistics (released behaviour); eval: unchanged"""

    settings: Settings

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
        settings: Settings, in_features: int, num_classes: int, draws: torch.Generator | None
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
