"""EWC: one network on each task's own images, held where it was important.

Algorithm. 1. First task: one backbone and head, cross-entropy. 2. Later: grow the head, and train
on the new images alone with ``L = CE(new logits, y − K_old) + λ/2 · Σ F·(θ − θ*)²``; θ* is the
network before the task. 3. After every task, one pass over its images without a step:
``F_new = min(mean over batches of (∂CE/∂θ)², 1e-4)``, ``F ← α·F + (1 − α)·F_new``, α = K_old/K.
New rows of the head have no penalty, and keep F_new.

Where this departs from the paper (Kirkpatrick et al., PNAS 2017):

1. The Fisher information is that of the mean gradient of a batch, squared, at the true labels, in
   train mode on augmented images; the paper's is per image. It is limited to 1e-4, which bounds
   λ·F by 0.1 at λ = 1000.
2. There is one importance and one anchor for all earlier tasks: importances are averaged by numbers
   of classes, the anchor is the network after the last task. The paper has a penalty per task.
3. Classes share one growing head, whose old rows are held too. Later tasks use their own logits
   only, as Finetune does; a task without a new class has none and is refused.
4. The pass that estimates the importance changes the running statistics of batch norm.

Expect accuracy a little above Finetune's, far below that of every method with exemplars. A saved
learner is twice as large as Finetune's, as it holds the importance of every parameter.

Source: Kirkpatrick et al., *Overcoming catastrophic forgetting in neural networks*, PNAS 2017,
arXiv:1612.00796.
"""

from collections.abc import Mapping
from typing import final

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.engine.parts import named_parameters
from grace.engine.phase import Batch, GradientSweep, Loss, Phase
from grace.engine.reducers import SquaredGradients
from grace.methods.classification import classification, new_class_loss
from grace.methods.method import Method, Outcome, Steps
from grace.methods.module_factory import ModuleFactory, Outline
from grace.methods.network_parts import trained_network
from grace.methods.slots import TensorsSlot
from grace.nn.losses.importance import merged_importance, quadratic_penalty
from grace.settings.method import NOT_ZERO, BaseMethodSettings, Traits
from grace.settings.recipe import Recipe, multistep


@final
class EWC(Method):
    """One backbone, one growing head, no memory; ``importance`` holds F by parameter."""

    traits = Traits(memory="none", compares_new_classes_only=True)

    exceptions = {"changes": {"fisher": "the Fisher pass moves batch-norm buffers"}}

    class Settings(BaseMethodSettings):
        needs = (("importance_limit", "penalty_weight", NOT_ZERO),)

        update: Recipe = multistep(180, 70, 120, 150)
        """recipe of every later task"""
        penalty_weight: float = Field(1000.0, ge=0)
        """λ: weight of the penalty Ω. Higher: less is forgotten and new classes are learnt less
        well; 0: no penalty"""
        importance_limit: float = Field(1e-4, gt=0)
        """upper limit of a parameter's importance F. Higher: important parameters are held more
        firmly, and training can become unstable; change it with λ"""

    settings: Settings

    def __init__(self, settings: Settings, factory: ModuleFactory, memory: ExemplarMemory) -> None:
        super().__init__(settings, factory, memory)
        # The anchor is not saved: it is the network itself.
        self.importance = self.state.add(TensorsSlot("importance", _like_parameters))

    @override
    def first_task(self, task: Task) -> Steps[Outcome]:
        outcome = yield from super().first_task(task)
        yield from self._estimate_importance(task, self.settings.base.batch_size)
        return outcome

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        """L = CE(z[:, K_old:], y − K_old) + λ·Ω, with the present network as anchor."""
        importance = self.importance.value or {}
        before = named_parameters(trained_network(self.network))
        anchor = {name: value.detach().clone() for name, value in before.items()}
        self.grow_head(task)
        parts = trained_network(self.network)
        parameters = named_parameters(parts)

        def objective(batch: Batch) -> dict[str, Loss]:
            loss = new_class_loss(batch["head"], batch.labels, task.num_old_outputs)
            penalty = quadratic_penalty(parameters, anchor, importance)
            weight = self.settings.penalty_weight
            return {"classification": loss, "penalty": Loss(penalty, weight, over="nothing")}

        yield Phase(
            name="update",
            parts=parts,
            objective=objective,
            recipe=self.settings.update,
            data=task.data,
        )
        yield from self._estimate_importance(task, self.settings.update.batch_size)
        return Outcome(verdict="train", reason="ewc keeps to one backbone")

    def _estimate_importance(self, task: Task, batch_size: int) -> Steps[None]:
        """F_new = min(mean over batches of (∂CE/∂θ)², limit), merged by numbers of classes."""
        parts = trained_network(self.network)
        squares = yield GradientSweep(
            name="fisher",
            parts=parts,
            objective=classification,
            data=task.data,
            batch_size=batch_size,
            reducer=SquaredGradients(),
        )
        limit = self.settings.importance_limit
        # On the parameters' device and in their layout, wherever the squares come from.
        fresh = {
            name: torch.empty_like(value).copy_(squares[name]).clamp_(max=limit)
            for name, value in named_parameters(parts).items()
        }
        share = task.num_old_remembered / task.num_remembered
        self.importance.value = merged_importance(self.importance.value or {}, fresh, share)


def _like_parameters(network: Outline) -> Mapping[str, Tensor]:
    """Sketch a tensor for every parameter of a network of one backbone."""
    modules = {"backbone.0": network.backbone, "head": network.head}
    return {
        f"{part}.{name}": value.detach()
        for part, module in modules.items()
        for name, value in module.named_parameters()
    }
