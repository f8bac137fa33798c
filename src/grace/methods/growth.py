"""Grow: a provisional backbone beside the frozen ones, as DER, MEMO and GRACE train it."""

from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss, Part, Phase
from grace.methods.classification import class_loss
from grace.methods.method import Method, Steps
from grace.methods.network_parts import frozen_network
from grace.nn.expandable import ExpandableNetwork, copy_of
from grace.nn.heads import align_weights
from grace.nn.losses.classification import auxiliary_labels, cross_entropy
from grace.settings.recipe import Recipe


def grow(
    method: Method,
    task: Task,
    recipe: Recipe,
    auxiliary_weight: float,
    *,
    trains_trunk: bool = False,
) -> Steps[ExpandableNetwork]:
    """Train the expanded network on the task's images and the exemplars; return it.

    The provisional backbone starts as a full copy of the last one. Only it, the whole grown head
    and a fresh auxiliary head learn, with L_exp = CE(f_exp(x), y) + CE(f_aux(x), y_aux) (the
    paper's Eq. 3); the auxiliary labels are 0 for any old class and 1..K_new for the new ones.
    Weight alignment follows, if the settings have it. The method's own network does not change.

    Args:
        method: gives the old network, exemplars and fresh modules.
        task: its images are trained on.
        recipe: of the phase.
        auxiliary_weight: Higher: new features separate new from old classes more.
        trains_trunk: train the trunk too, if the backbones share one.
    """
    expanded, data = _expanded(method, task, trains_trunk), method.with_exemplars(task)
    classify = class_loss(method.settings, method.factory, task, data)
    trunk, provisional = expanded.trunk, expanded.backbones[-1]
    auxiliary = method.factory.linear(
        provisional.feature_dim, task.num_new_classes + 1, "auxiliary", task.number
    )
    parts = frozen_network(method.network, has_head=False)
    features = [name for name in parts if name != "trunk"]
    if trunk is not None:
        parts["trunk"] = Part(trunk, trains=trains_trunk)

    def objective(batch: Batch) -> dict[str, Loss]:
        targets = auxiliary_labels(batch.labels, task.num_old_outputs)
        return {
            "classification": Loss(classify(batch["head"], batch.labels)),
            "auxiliary": Loss(cross_entropy(batch["auxiliary"], targets), auxiliary_weight),
        }

    yield Phase(
        name="grow",
        parts=parts
        | {
            "new": Part(provisional, ["images" if trunk is None else "trunk"]),
            "head": Part(expanded.head, [*features, "new"]),
            "auxiliary": Part(auxiliary, ["new"]),
        },
        objective=objective,
        recipe=recipe,
        data=data,
    )
    if method.settings.aligns_weights:
        align_weights(expanded.head, task.num_new_classes)
    return expanded


def _expanded(method: Method, task: Task, trains_trunk: bool) -> ExpandableNetwork:
    """Make the expanded network: the old one's backbones, a copy of the last, a grown head."""
    old = method.network
    trunk = copy_of(old.trunk) if old.trunk is not None and trains_trunk else old.trunk
    provisional = copy_of(old.backbones[-1])
    width = old.feature_dim + provisional.feature_dim
    head = method.factory.grown_head(old.head, width, task.num_classes, "main", task.number)
    return ExpandableNetwork([*old.backbones, provisional], head, trunk)
