"""EWC: hold each parameter where it was, as firmly as it is important (spec §3.3).

Where this departs from the paper (Kirkpatrick et al., PNAS 2017):

1. The Fisher information is that of the mean gradient of a batch, squared, at the true labels, in
   train mode on augmented images; the paper's is per image. It is limited to 1e-4, which bounds
   λ·F by 0.1 at λ = 1000.
2. One importance and one anchor stand for all earlier tasks: importances are averaged by numbers
   of classes, the anchor is the network as the last task left it. The paper sums a penalty each.
3. Classes share one growing head, whose old rows are held too. Later tasks compare their own
   logits only, as Finetune does; a task without a new class has none and is refused.
4. The pass that estimates the importance moves the running statistics of batch norm.
"""

from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.configs.methods import EWCSettings
from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.engine.phase import Batch, GradientSweep, Loss, Phase, named_parameters
from grace.engine.reducers import SquaredGradients
from grace.methods.base import Method, Outcome, Steps
from grace.methods.new_classes import new_class_loss
from grace.methods.workshop import Workshop
from grace.networks.loading import load_tensors
from grace.objectives.importance import merged_importance, quadratic_penalty
from grace.storage.errors import DamagedError
from grace.storage.tensors import encoded_size


@final
class EWC(Method[EWCSettings]):
    """One backbone, one growing head, no memory; ``importance`` is F by parameter."""

    uses_memory: ClassVar[bool] = False
    compares_new_classes_only: ClassVar[bool] = True

    def __init__(self, settings: EWCSettings, workshop: Workshop, memory: ExemplarMemory) -> None:
        super().__init__(settings, workshop, memory)
        self.importance: dict[str, Tensor] = {}

    @override
    def first_task(self, task: Task) -> Steps[Outcome]:
        outcome = yield from super().first_task(task)
        yield from self._estimate_importance(task, self.settings.base.batch_size)
        return outcome

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        """L = CE(z[:, K_old:], y − K_old) + λ·Ω, with the present network as anchor."""
        importance = self.importance
        anchor = {name: value.detach().clone() for name, value in self._parameters().items()}
        self.grow_head(task)
        head, parameters = self.network.head, self._parameters()

        def objective(batch: Batch) -> dict[str, Loss]:
            logits = head(batch.learned[0])
            penalty = quadratic_penalty(parameters, anchor, importance)
            return {
                "classification": new_class_loss(logits, batch.labels, task.num_old_classes),
                "penalty": Loss(penalty, self.settings.penalty_weight),
            }

        yield Phase(
            name="update",
            backbones=[self.single_backbone],
            heads=[head],
            objective=objective,
            recipe=self.settings.update,
            data=task.data,
        )
        yield from self._estimate_importance(task, self.settings.update.batch_size)
        return Outcome(verdict="update")

    def _estimate_importance(self, task: Task, batch_size: int) -> Steps[None]:
        """F_new = min(mean over batches of (∂CE/∂θ)², limit), merged by numbers of classes."""
        squares = yield GradientSweep(
            name="fisher",
            backbones=[self.single_backbone],
            heads=[self.network.head],
            objective=self.classification(),
            data=task.data,
            batch_size=batch_size,
            reducer=SquaredGradients(),
        )
        limit = self.settings.importance_limit
        # On the parameters' device and in their layout, wherever the squares come from.
        fresh = {
            name: torch.empty_like(value).copy_(squares[name]).clamp_(max=limit)
            for name, value in self._parameters().items()
        }
        share = task.num_live_old / task.num_live
        self.importance = merged_importance(self.importance, fresh, share)

    def _parameters(self) -> dict[str, nn.Parameter]:
        return named_parameters([self.single_backbone], [self.network.head])

    @override
    def own_parts(self) -> Mapping[str, Mapping[str, Tensor]]:
        # The anchor needs no saving: it is the network itself.
        return {"importance": self.importance} if self.importance else {}

    @override
    def restore_parts(self, parts: Mapping[str, Mapping[str, Tensor]]) -> None:
        learnt = bool(self.classifiers())
        if parts.keys() != ({"importance"} if learnt else set()):
            raise DamagedError("the saved ewc needs an importance for its network, and no more")
        self.importance = {}
        if learnt:
            own = {name: torch.empty_like(value) for name, value in self._parameters().items()}
            load_tensors(own, parts["importance"], "importance")
            self.importance = own

    @override
    def bytes_after(self, task: Task, *, grows: bool) -> int:
        network = self._network or self.fresh_network(task)
        head = self.workshop.head(network.feature_dim, task.num_classes, "measured")
        own = named_parameters(list(network.backbones), [head])
        importance = encoded_size({name: (value.shape, value.dtype) for name, value in own.items()})
        return super().bytes_after(task, grows=grows) + importance
