"""Compress: distil a network into one with a backbone less (GRACE)."""

import torch

from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss, Part, Phase
from grace.methods.classification import class_loss
from grace.methods.method import Method, Steps
from grace.methods.network_parts import frozen_network
from grace.nn.backbone import Backbone
from grace.nn.expandable import ExpandableNetwork
from grace.nn.heads import Head, align_weights
from grace.nn.losses.distillation import (
    distillation_share,
    feature_distillation,
    logit_distillation,
)
from grace.nn.merging import merge_backbones
from grace.settings.methods import GraceSettings


def compress(
    method: Method[GraceSettings], task: Task, expanded: ExpandableNetwork, weight: float | None
) -> Steps[ExpandableNetwork]:
    """Distil the expanded network into one with a backbone less; return it.

    The student backbone starts as the weighted mean of the mergeable and the provisional backbone,
    or as a fresh one. Its head starts fresh.

    Args:
        method: gives settings, exemplars and fresh modules.
        task: its images are trained on.
        expanded: the teacher.
        weight: of the mergeable backbone, in [0, 1]; ``None``: the student starts fresh. Higher:
            the student is closer to the mergeable backbone.
    """
    *fixed, mergeable, provisional = expanded.backbones
    if weight is None:
        student = method.factory.branch("student", task.number)
    else:
        student = merge_backbones(mergeable, provisional, weight)
    head = method.class_head(task, expanded.feature_dim - provisional.feature_dim, "student")
    yield distillation_phase(
        method,
        "compress",
        task,
        teacher=expanded,
        student=student,
        head=head,
        num_replaced=2,
        share=distillation_share(task.num_old_remembered, task.num_remembered),
    )
    if method.settings.aligns_weights:
        align_weights(head, task.num_new_classes)
    return ExpandableNetwork([*fixed, student], head, expanded.trunk)


def distillation_phase(
    method: Method[GraceSettings],
    name: str,
    task: Task,
    *,
    teacher: ExpandableNetwork,
    student: Backbone,
    head: Head,
    num_replaced: int,
    share: float,
) -> Phase:
    """Make the phase that trains one student backbone in place of the teacher's last ones.

    All other backbones are shared and frozen. L_com = λ(α·L_kd + β·L_feat) + (1 − λ)·L_ce (paper
    Eq. 11), with λ = ``share``. The teacher's backbones are computed once for both networks.

    Args:
        method: gives settings, exemplars and fresh modules.
        name: of the phase.
        task: its images are trained on.
        teacher: frozen.
        student: the backbone that trains.
        head: the student network's head, trained.
        num_replaced: how many of the teacher's last backbones the student replaces.
        share: λ in [0, 1]. Higher: the teacher counts more and the labels less.
    """
    settings, data = method.settings, method.with_exemplars(task)
    classify = class_loss(method.settings, method.factory, task, data)
    parts = frozen_network(teacher, has_head=settings.logit_distillation)
    features = [name for name in parts if name not in ("old.head", "trunk")]
    source = "images" if teacher.trunk is None else "trunk"
    fixed, replaced = features[:-num_replaced], features[-num_replaced:]
    parts |= {"student": Part(student, [source]), "head": Part(head, [*fixed, "student"])}
    if settings.feature_distillation:
        width = sum(backbone.feature_dim for backbone in teacher.backbones[-num_replaced:])
        projection = method.factory.linear(student.feature_dim, width, "projection", task.number)
        parts["projection"] = Part(projection, ["student"])
    distils = settings.logit_distillation or settings.feature_distillation
    scale = 1 - share if distils or settings.scale_cross_entropy else 1.0

    def objective(batch: Batch) -> dict[str, Loss]:
        logits = batch["head"]
        losses = {"classification": Loss(classify(logits, batch.labels), scale)}
        if settings.logit_distillation:
            value = logit_distillation(logits, batch["old.head"], settings.temperature)
            losses["logits"] = Loss(value, share * settings.logit_weight)
        if settings.feature_distillation:
            goal = torch.cat([batch[name] for name in replaced], dim=1)
            value = feature_distillation(batch["projection"], goal)
            losses["features"] = Loss(value, share * settings.feature_weight)
        return losses

    return Phase(
        name=name,
        parts=parts,
        objective=objective,
        recipe=settings.compress,
        data=data,
        teacher=teacher if num_replaced > 1 else None,
    )
