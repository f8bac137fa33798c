"""TagFex: DER, each new backbone guided by a self-supervised network that all tasks train.

Algorithm. Every image is in a batch as two views. 1. First task: a backbone learns by
cross-entropy, a task-agnostic network by comparing the views. 2. Later: add a backbone, mixed from
the last one and the task-agnostic one; the latter learns on, kept near its old state. Merge
attention predicts the new classes from the features of both; where it is better, it teaches the
head. 3. Align the head. 4. Herd exemplars.

New backbones should not repeat the features of the old ones. So the features of a task-agnostic
network, trained without labels, are merged with a new backbone's by attention, and what the merged
features predict is transferred to it. Predictions use the backbones alone.

Where this departs from the paper (Zheng et al., CVPR 2025) or fills its gaps:

1. ``old_rows``: in the grown head, old rows weigh new features with 0, as the authors release it;
   in PyCIL these weights are drawn at random.
2. The merge attention has 8 heads (published for ResNet-18 alone) and projections without biases.
3. The last, incomplete batch is trained on. The authors drop it on CIFAR (``drop_last``).
4. The predictor is made with the agnostic network in task 1, where nothing uses it.
5. Projector, predictor and attention start as torch's layers do; heads start as all heads do.
6. If a batch has no image of a new class, CE_trans and L_transfer are 0.
7. With several processes, views are compared, and the transfer is gated, over the whole batch.
8. The new backbone's batch-norm statistics start afresh.
9. A task without a new class is refused: there is nothing to expand for.

Expect DER's accuracy with strong augmentation; without it the views are alike and teach less. A
task costs four times DER's training passes.

Source: Zheng et al., *Task-Agnostic Guided Feature Expansion for Class-Incremental Learning*, CVPR
2025, arXiv:2503.00823.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, final

import torch
from pydantic import Field
from torch import nn
from typing_extensions import override

from grace.base.randomness import seeded_globally
from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss, Objective, Part, Parts, Phase
from grace.methods.classification import plain_objective
from grace.methods.method import Method, Outcome, Steps
from grace.methods.module_factory import ModuleFactory
from grace.methods.network_parts import frozen_network, trained_network
from grace.methods.planning import Coming, PlannedPhase
from grace.methods.slots import ModuleSlot
from grace.nn.attention import MergeAttention, Pick, TaskAgnostic
from grace.nn.backbone import Backbone, WithMaps
from grace.nn.expandable import ExpandableNetwork, copy_of
from grace.nn.heads import Head, LinearHead, align_weights
from grace.nn.losses.classification import auxiliary_labels, cross_entropy, new_class_cross_entropy
from grace.nn.losses.distillation import distillation_share, guided_transfer, info_nce
from grace.nn.merging import merge_backbones
from grace.settings.method import NOT_ZERO, AligningSettings, Traits
from grace.settings.recipe import Recipe, multistep


@final
class TagFex(Method):
    """Task-specific backbones as DER's; ``agnostic`` is the one network that every task trains."""

    traits = Traits(grows_every_task=True, freezes_old_network=True)

    variants = {"random": {"old_rows": "random"}}

    class Settings(AligningSettings):
        needs = (
            ("transfer_temperature", "transfer_weight", NOT_ZERO),
            ("attention_heads", "transfer_weight|merged_weight", NOT_ZERO),
            ("contrastive_temperature", "contrastive_weight|retention_weight", NOT_ZERO),
        )

        grow: Recipe = multistep(170, 80, 120, 150)
        """recipe of every later task; each image is two rows of a batch"""
        auxiliary_weight: float = Field(2.0, ge=0)
        """weight of the auxiliary head's loss. Higher: new features separate new from old classes
        more; 0: no auxiliary loss"""
        contrastive_weight: float = Field(1.0, ge=0)
        """weight of InfoNCE, in later tasks times 1 − K_old/K. Higher: the agnostic network adapts
        to new images faster"""
        retention_weight: float = Field(2.0, ge=0)
        """weight of the agnostic network's distillation, times K_old/K. Higher: it changes less"""
        contrastive_temperature: float = Field(0.2, gt=0)
        """τ of both. Lower: the most similar images count more"""
        projector_width: int = Field(512, ge=1, le=8192)
        """h: hidden units of the projector; 2048 published for resnet18. Higher: slower training
        and more memory"""
        embedding_width: int = Field(128, ge=1, le=8192)
        """o: width of the embeddings in which views are compared; 1024 published for resnet18.
        Higher: slower training and more memory"""
        merged_weight: float = Field(1.0, ge=0)
        """weight of CE_trans, the cross-entropy of the merged features' classifier. Higher: the new
        backbone's features fit the agnostic ones better"""
        transfer_weight: float = Field(1.0, ge=0)
        """weight of L_transfer. Higher: the new logits are closer to that classifier's in batches
        where its loss is lower; 0: no transfer"""
        transfer_temperature: float = Field(2.0, gt=0)
        """T of L_transfer. Higher: small probabilities count more"""
        attention_heads: int = Field(8, ge=1)
        """heads of the merge attention, a divisor of the last map's channels. More: each head sees
        fewer channels, 8 of 64 for resnet32"""
        agnostic_share: float = Field(0.05, ge=0, le=1)
        """share of the agnostic network in a new backbone's first parameters; the rest is the last
        backbone's. 0: a copy of the last backbone; 1: a copy of the agnostic network"""
        old_rows: Literal["zero", "random"] = "zero"
        """first values of old classes' weights for new features. zero: 0; random: fresh draws, as
        in PyCIL"""

    settings: Settings

    def __init__(self, settings: Settings, factory: ModuleFactory, memory: ExemplarMemory) -> None:
        super().__init__(settings, factory, memory)
        self.agnostic = self.state.add(
            ModuleSlot(
                "agnostic",
                partial(fresh_agnostic, self.factory, settings, "restored"),
                partial(sketched_agnostic, self.factory, settings),
            )
        )

    @override
    def first_task(self, task: Task) -> Steps[Outcome]:
        """L = CE(f(x), y) + w·InfoNCE(P(f_TA(x))), on two views of each image."""
        settings = self.settings
        backbone = self.factory.backbone(task.number)
        # Made here too, so that a wrong number of heads is refused before training.
        fresh_attention(self.factory, settings, backbone, task.number)
        self.network = self.fresh_network(task, backbone)
        agnostic = fresh_agnostic(self.factory, settings, "agnostic")
        self.agnostic.value = agnostic

        classify = plain_objective(self.settings, self.factory, task, task.data)

        def objective(batch: Batch) -> dict[str, Loss]:
            views = batch.everyone(batch["projector"].float())
            contrast = info_nce(views, views, settings.contrastive_temperature)
            losses = {"contrast": Loss(contrast, settings.contrastive_weight, over="batch")}
            return {**classify(batch), **losses}

        guide = {
            "agnostic": Part(agnostic.backbone),
            "projector": Part(agnostic.projector, ["agnostic"]),
        }
        yield Phase(
            name="base",
            parts=trained_network(self.network) | guide,
            objective=objective,
            recipe=settings.base,
            data=task.data,
            views=2,
        )
        return Outcome(verdict="start")

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        """Add a backbone, and train the agnostic network further beside a frozen copy of it.

        L = CE + w_aux·CE_aux + (1 − κ)·w·InfoNCE + κ·w_kd·KD_nce + CE_trans + L_transfer, with
        κ = K_old/K. Weight alignment follows.
        """
        old, agnostic = self.network, self.agnostic.value
        assert agnostic is not None
        share = self.settings.agnostic_share
        new = merge_backbones(old.backbones[-1], agnostic.backbone, weight=1 - share)
        head = grown_head(self.factory, self.settings, old.head, new, task)
        data = self.with_exemplars(task)
        classify = plain_objective(self.settings, self.factory, task, data)
        yield Phase(
            name="grow",
            parts=self._graph(task, agnostic, new, head),
            objective=partial(_later_objective, self.settings, task, classify),
            recipe=self.settings.grow,
            data=data,
            views=2,
        )
        if self.settings.aligns_weights:
            align_weights(head, task.num_new_classes)
        self.network = ExpandableNetwork([*old.backbones, new], head)
        return Outcome(verdict="grow", reason="tagfex adds a backbone with every update")

    def _graph(self, task: Task, agnostic: TaskAgnostic, new: Backbone, head: Head) -> Parts:
        old, before = frozen_network(self.network, has_head=False), copy_of(agnostic)
        linear, number = self.factory.linear, task.number
        auxiliary = linear(new.feature_dim, task.num_new_classes + 1, "auxiliary", number)
        attention = fresh_attention(self.factory, self.settings, new, number)
        merged = linear(new.map_channels[-1], task.num_new_classes, "merged", number)
        return {
            **old,
            "old.agnostic": Part(nn.Sequential(before.backbone, before.projector), trains=False),
            **with_map("agnostic", agnostic.backbone),
            "projector": Part(agnostic.projector, ["agnostic"]),
            # Only the predictor trains; the old projector is frozen.
            "predicted": Part(
                nn.Sequential(agnostic.predictor, before.projector),
                ["agnostic"],
                trains=("0.weight", "0.bias"),
            ),
            **with_map("new", new),
            "head": Part(head, [*old, "new"]),
            "auxiliary": Part(auxiliary, ["new"]),
            "attention": Part(attention, ["agnostic.map", "new.map"]),
            "merged": Part(merged, ["attention"]),
        }

    @override
    def plan(self, coming: Coming) -> Sequence[PlannedPhase]:
        """Plan the phases: two views of each image pass all networks."""
        frozen = 0 if coming.is_first else 2 * (coming.num_backbones + 1)
        return [replace(phase, trained=4, frozen=frozen) for phase in super().plan(coming)]


def _later_objective(
    settings: TagFex.Settings, task: Task, classify: Objective, batch: Batch
) -> dict[str, Loss]:
    num_old = task.num_old_outputs
    kappa = distillation_share(task.num_old_remembered, task.num_remembered)
    views, predicted, before, logits, merged = (
        batch.everyone(batch[part].float())
        for part in ("projector", "predicted", "old.agnostic", "head", "merged")
    )
    labels, tau = batch.everyone(batch.labels), settings.contrastive_temperature
    transfer = guided_transfer(logits, merged, labels, num_old, settings.transfer_temperature)
    auxiliary = cross_entropy(batch["auxiliary"], auxiliary_labels(batch.labels, num_old))
    return {
        **classify(batch),
        "auxiliary": Loss(auxiliary, settings.auxiliary_weight),
        "contrast": Loss(
            info_nce(views, views, tau), (1 - kappa) * settings.contrastive_weight, over="batch"
        ),
        "retention": Loss(
            info_nce(predicted, before, tau), kappa * settings.retention_weight, over="batch"
        ),
        "merged": Loss(
            new_class_cross_entropy(merged, labels - num_old, 0),
            settings.merged_weight,
            over="batch",
        ),
        "transfer": Loss(transfer, settings.transfer_weight, over="batch"),
    }


def with_map(name: str, backbone: Backbone) -> dict[str, Part]:
    """Name the parts of a trained backbone: ``name`` gives features, ``name.map`` the map."""
    both = f"{name}.both"
    return {
        both: Part(WithMaps(backbone)),
        name: Part(Pick(0), [both]),
        f"{name}.map": Part(Pick(1), [both]),
    }


def fresh_agnostic(factory: ModuleFactory, settings: TagFex.Settings, purpose: str) -> TaskAgnostic:
    """Make a task-agnostic network, in eval mode without gradients.

    Args:
        factory: makes its backbone.
        settings: widths of the projector.
        purpose: seeds the draws of the backbone.
    """
    with seeded_globally(factory.settings.seeds.initialisation, "agnostic"):
        made = TaskAgnostic(
            factory.backbone(purpose), settings.projector_width, settings.embedding_width
        )
    return factory.device.place(made).eval().requires_grad_(False)


def sketched_agnostic(factory: ModuleFactory, settings: TagFex.Settings) -> TaskAgnostic:
    """Make a task-agnostic network on the meta device: names and shapes without memory."""
    with torch.device("meta"):
        return TaskAgnostic(factory.sketch, settings.projector_width, settings.embedding_width)


def fresh_attention(
    factory: ModuleFactory, settings: TagFex.Settings, backbone: Backbone, number: int
) -> MergeAttention:
    """Make the attention of one task over the last maps of two backbones.

    Args:
        factory: gives seed and device.
        settings: number of heads.
        backbone: of the architecture of both.
        number: of the task, seeds the draws.
    """
    with seeded_globally(factory.settings.seeds.initialisation, "attention", number):
        made = MergeAttention(backbone.map_channels[-1], settings.attention_heads)
    return factory.device.place(made)


def grown_head(
    factory: ModuleFactory, settings: TagFex.Settings, old: Head, new: Backbone, task: Task
) -> Head:
    """Add a task's rows and the new backbone's columns to the head.

    Args:
        factory: makes the head.
        settings: say how the old classes' weights for new features start.
        old: head to grow.
        new: the backbone.
        task: its new classes.
    """
    width = old.in_features + new.feature_dim
    head = factory.grown_head(old, width, task.num_classes, "main", task.number)
    if settings.old_rows == "zero":
        assert isinstance(head, LinearHead)
        with torch.no_grad():
            head.weight[: old.num_classes, old.in_features :] = 0
    return head
