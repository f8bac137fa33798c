"""Update with distillation: one network trains, a frozen copy is its teacher (iCaRL, WA)."""

from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss, Phase
from grace.methods.classification import class_loss
from grace.methods.method import Method, Steps
from grace.methods.network_parts import frozen_network, trained_network
from grace.nn.expandable import copy_of
from grace.nn.losses.distillation import soft_distillation
from grace.settings.recipe import Recipe


def distil_old_self(
    method: Method,
    task: Task,
    recipe: Recipe,
    *,
    temperature: float,
    classification_weight: float,
    distillation_weight: float,
) -> Steps[None]:
    """Train the network, its head grown, on the task's images and the exemplars.

    L = a·CE(z, y) + b·KDsoft(z[:, :K_old], z_teacher, T), with the two weights as a and b; the
    teacher is a copy of the network from before the task.

    Args:
        method: its network trains.
        task: its images are trained on.
        recipe: of the phase.
        temperature: T. Higher: small probabilities of the teacher count more.
        classification_weight: a. Higher: new classes are learnt better.
        distillation_weight: b. Higher: less is forgotten.
    """
    teacher = copy_of(method.network)
    method.grow_head(task)
    data = method.with_exemplars(task)
    classify = class_loss(method.settings, method.factory, task, data)

    def objective(batch: Batch) -> dict[str, Loss]:
        logits = batch["head"]
        old_logits = logits[:, : task.num_old_outputs]
        distillation = soft_distillation(old_logits, batch["old.head"], temperature)
        return {
            "classification": Loss(classify(logits, batch.labels), classification_weight),
            "distillation": Loss(distillation, distillation_weight),
        }

    yield Phase(
        name="update",
        parts=frozen_network(teacher) | trained_network(method.network),
        objective=objective,
        recipe=recipe,
        data=data,
    )
