"""BEEF: a module for every task, trained alone with an energy objective, then fused with the rest.

Where this departs from the paper (Wang et al., ICLR 2023) or fills its gaps:

1. This is BEEF without compression, one backbone more per task, as its authors released it.
2. Between tasks the modules are stored as one head over all features, which fusion computes. It
   gives the same logits, to the bit, as the modules with their α and β.
3. An old class's bias is the sum over all modules, as its weights are; the released code keeps the
   newest module's alone, which ``old_bias="newest"`` does.
4. Batch norm of frozen backbones does not change. In the released code it normalises by the batch,
   and changes, in all backbones but the first, and in the newest while it is fused:
   ``old_batch_norm="train"``.
5. Energy samples are computed with the present module in eval mode, without a copy of it. Their
   loss runs it in train mode, so that they count in its running statistics. Old tasks' logits are
   divided in the classification loss only.
6. Fusion draws its images of new classes uniformly, as many of each as the old class with the most
   exemplars has.
7. An old task whose classes are all forgotten takes part in no softmax.
8. A task without a new class is refused: its module would have no class.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import final

import torch
from pydantic import Field
from typing_extensions import override

from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.engine.phase import Part, Phase
from grace.methods.classification import class_prior, classification
from grace.methods.energies import module_objective
from grace.methods.fusion import Fusion, affine
from grace.methods.herding import balanced, balanced_size
from grace.methods.method import Method, Outcome, Steps
from grace.methods.module_factory import ModuleFactory
from grace.methods.network_parts import frozen_network, trained_network
from grace.methods.planning import Coming, PlannedPhase
from grace.methods.state import StateValues
from grace.nn.backbone import Backbone
from grace.nn.expandable import ExpandableNetwork, copy_of
from grace.nn.heads import Head
from grace.nn.losses.energy import module_labels, output_log_prior
from grace.settings.methods import BeefSettings
from grace.settings.recipe import Recipe


@final
class BeefValues(StateValues):
    """The values that BEEF saves beside its tensors."""

    class_counts: list[int] = Field(default_factory=list)
    """Number of classes of every task, and so of every backbone."""

    @override
    def problem(self, num_backbones: int, num_classes: int) -> str | None:
        counts = self.class_counts
        if len(counts) != num_backbones or sum(counts) != num_classes or min(counts, default=1) < 1:
            return "does not count the classes of every backbone"
        return None


@final
class Beef(Method[BeefSettings]):
    """One backbone per task, and one linear head whose rows the fusions computed."""

    def __init__(
        self, settings: BeefSettings, factory: ModuleFactory, memory: ExemplarMemory
    ) -> None:
        super().__init__(settings, factory, memory)
        self.values = self.state.add_values(BeefValues())

    @override
    def first_task(self, task: Task) -> Steps[Outcome]:
        self.network = self.fresh_network(task)
        yield self._module_phase("base", self.settings.base, task, trained_network(self.network))
        self.values.class_counts = [task.num_classes]
        return Outcome(verdict="start")

    @override
    def later_task(self, task: Task) -> Steps[Outcome]:
        old, number = self.network, task.number
        new = copy_of(old.backbones[0])
        width = new.feature_dim
        prototypes = self.factory.linear(width, len(old.backbones), "backward", number)
        prototypes.mask(self._forgotten_tasks(task))
        classes = self.factory.linear(width, task.num_new_classes, "new", number)
        module = {
            "new": Part(new),
            "prototypes": Part(prototypes, ["new"]),
            "classes": Part(classes, ["new"]),
        }
        moving = {name: part for name, part in self._old_parts().items() if part.changes}
        phase = self._module_phase("expand", self.settings.expand, task, module)
        yield replace(phase, parts={**moving, **phase.parts})
        head = yield from self._fuse(task, new, prototypes, classes)
        self.network = ExpandableNetwork([*old.backbones, new], head)
        self.values.class_counts = [*self.values.class_counts, task.num_new_classes]
        return Outcome(verdict="grow", reason="beef adds a backbone with every update")

    def _module_phase(self, name: str, recipe: Recipe, task: Task, parts: dict[str, Part]) -> Phase:
        """Make the phase that trains one module: a backbone, its heads, energies of all classes."""
        backbone, *heads = parts
        counts = self.values.class_counts
        labels_of = module_labels(counts, task.num_new_classes)
        labels_of = labels_of.to(self.factory.device.torch_device)
        width = self.network.backbones[0].feature_dim
        if self.settings.energy_weight:
            energy = Part(self.class_head(task, width, "energy"), [backbone])
            parts = {**parts, "energy": energy}
        data = self.with_exemplars(task)
        prior = class_prior(self.settings, self.factory, task, data)
        if prior is not None:
            prior = output_log_prior(prior, labels_of)
        return Phase(
            name=name,
            parts=parts,
            objective=module_objective(
                self.settings, labels_of, len(counts), backbone, heads, prior
            ),
            recipe=recipe,
            data=data,
        )

    def _fuse(self, task: Task, new: Backbone, prototypes: Head, classes: Head) -> Steps[Head]:
        """Train only α and β, on equally many images of every class: L = CE(z, y) over all."""
        settings, network = self.settings, self.network
        weight, bias = affine(network.head)
        if settings.old_bias == "newest":
            bias = torch.zeros_like(bias)
        tasks = module_labels(self.values.class_counts, 0).to(bias.device)
        fusion = Fusion((weight, bias), prototypes, classes, tasks, task.forgotten)
        seed = self.factory.settings.seeds.exemplars
        data = yield from balanced(self.memory, task, None, seed)
        old = self._old_parts()
        head = Part(fusion, [*old, "new"])
        newest = Part(new, trains=False, mode=settings.old_batch_norm)
        yield Phase(
            name="fuse",
            parts={**old, "new": newest, "head": head},
            objective=classification,
            recipe=settings.fuse,
            data=data,
        )
        fused = self.class_head(task, network.feature_dim + new.feature_dim, "main")
        fused.load_state_dict(dict(zip(("weight", "bias"), fusion.rows(), strict=True)))
        return fused.eval().requires_grad_(False)

    def _old_parts(self) -> dict[str, Part]:
        """Name the old backbones; the settings may let batch norm of all but the first change."""
        parts = frozen_network(self.network, has_head=False)
        mode = self.settings.old_batch_norm
        return parts | {name: replace(parts[name], mode=mode) for name in list(parts)[1:]}

    def _forgotten_tasks(self, task: Task) -> list[int]:
        """List the old tasks, from 0, whose classes are all forgotten."""
        counts = self.values.class_counts
        ends = accumulate(counts)
        spans = [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
        return [number for number, span in enumerate(spans) if task.forgotten.issuperset(span)]

    @override
    def plan(self, coming: Coming) -> Sequence[PlannedPhase]:
        """Plan the phases; a step of the samples counts as two thirds of a training pass."""
        settings, count = self.settings, coming.num_backbones
        energy = 1 + settings.energy_steps * 2 / 3 if settings.energy_weight else 0
        found = [replace(phase, trained=1 + energy, frozen=0) for phase in super().plan(coming)]
        if coming.is_first:
            return found
        moving = count - 1 if settings.old_batch_norm == "train" else 0
        num_images = balanced_size(self.memory, coming)
        return [
            replace(found[0], frozen=moving),
            replace(found[1], num_images=num_images, trained=0, frozen=count + 1),
        ]
