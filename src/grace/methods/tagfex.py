"""TagFex: DER beside a self-supervised network that every task goes on training.

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
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import final

from torch import nn
from typing_extensions import override

from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss, Objective, Part, Parts, Phase
from grace.methods import guidance
from grace.methods.classification import plain_objective
from grace.methods.method import Method, Outcome, Steps
from grace.methods.module_factory import ModuleFactory
from grace.methods.network_parts import frozen_network, trained_network
from grace.methods.planning import Coming, PlannedPhase
from grace.nn.attention import TaskAgnostic
from grace.nn.backbone import Backbone
from grace.nn.expandable import ExpandableNetwork, copy_of
from grace.nn.heads import Head, align_weights
from grace.nn.losses.classification import (
    auxiliary_labels,
    cross_entropy,
    new_class_cross_entropy,
)
from grace.nn.losses.distillation import distillation_share, guided_transfer, info_nce
from grace.nn.merging import merge_backbones
from grace.settings.methods import TagFexSettings


@final
class TagFex(Method[TagFexSettings]):
    """Task-specific backbones as DER's; ``agnostic`` is the one network that every task trains."""

    def __init__(
        self, settings: TagFexSettings, factory: ModuleFactory, memory: ExemplarMemory
    ) -> None:
        super().__init__(settings, factory, memory)
        self.agnostic = self.state.module_slot(
            "agnostic",
            partial(guidance.fresh_agnostic, self.factory, settings, "restored"),
            partial(guidance.sketched_agnostic, self.factory, settings),
        )

    @override
    def first_task(self, task: Task) -> Steps[Outcome]:
        """L = CE(f(x), y) + w·InfoNCE(P(f_TA(x))), on two views of each image."""
        settings = self.settings
        backbone = self.factory.backbone(task.number)
        # Made here too, so that a wrong number of heads is refused before training.
        guidance.fresh_attention(self.factory, settings, backbone, task.number)
        self.network = self.fresh_network(task, backbone)
        agnostic = guidance.fresh_agnostic(self.factory, settings, "agnostic")
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
        head = guidance.grown_head(self.factory, self.settings, old.head, new, task)
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
        attention = guidance.fresh_attention(self.factory, self.settings, new, number)
        merged = linear(new.map_channels[-1], task.num_new_classes, "merged", number)
        return {
            **old,
            "old.agnostic": Part(nn.Sequential(before.backbone, before.projector), trains=False),
            **guidance.with_map("agnostic", agnostic.backbone),
            "projector": Part(agnostic.projector, ["agnostic"]),
            # Only the predictor trains; the old projector is frozen.
            "predicted": Part(
                nn.Sequential(agnostic.predictor, before.projector),
                ["agnostic"],
                trains=("0.weight", "0.bias"),
            ),
            **guidance.with_map("new", new),
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
    settings: TagFexSettings, task: Task, classify: Objective, batch: Batch
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
