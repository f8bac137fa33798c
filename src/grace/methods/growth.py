"""Grow: a provisional backbone beside the frozen ones, as DER, MEMO and GRACE train it."""

from typing import Any

import torch

from grace.configs.recipe import Recipe
from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss, Phase
from grace.methods.base import Method, Steps
from grace.networks.expandable import ExpandableNetwork, copy_of
from grace.networks.heads import align_weights
from grace.objectives.classification import auxiliary_labels, cross_entropy


def grow(
    method: Method[Any],
    task: Task,
    recipe: Recipe,
    auxiliary_weight: float,
    *,
    trains_trunk: bool = False,
) -> Steps[ExpandableNetwork]:
    """Train an expanded network on the task's images and the exemplars; return it, aligned.

    The provisional backbone starts as a full copy of the last one. Only it, the whole grown head
    and a fresh auxiliary head learn, with L_exp = CE(f_exp(x), y) + CE(f_aux(x), y_aux) (paper
    §3.3, Eq. 3); the auxiliary labels are 0 for any old class and 1..K_new for the new ones. Where
    the backbones share a trunk it learns too, if ``trains_trunk``. Weight alignment follows. The
    method's own network stays as it is.
    """
    old = method.network
    trunk = copy_of(old.trunk) if old.trunk is not None and trains_trunk else old.trunk
    provisional = copy_of(old.backbones[-1])
    head = method.workshop.grown_head(
        old.head, old.feature_dim + provisional.feature_dim, task.num_classes, "main", task.number
    )
    auxiliary = method.workshop.head(
        provisional.feature_dim, task.num_new_classes + 1, "auxiliary", task.number
    )

    def objective(batch: Batch) -> dict[str, Loss]:
        features = batch.learned[0]
        logits = head(torch.cat([*batch.frozen, features], dim=1))
        targets = auxiliary_labels(batch.labels, task.num_old_classes)
        return {
            "classification": Loss(cross_entropy(logits, batch.labels)),
            "auxiliary": Loss(cross_entropy(auxiliary(features), targets), auxiliary_weight),
        }

    yield Phase(
        name="grow",
        backbones=[provisional],
        heads=[head, auxiliary],
        frozen=list(old.backbones),
        trunk=trunk,
        trains_trunk=trains_trunk,
        objective=objective,
        recipe=recipe,
        data=method.with_exemplars(task),
    )
    align_weights(head, task.num_new_classes)
    return ExpandableNetwork([*old.backbones, provisional], head, trunk)
