"""BEEF: one new module per task, trained alone with an energy objective, then fused.

Algorithm. 1. First task: a backbone, a head, and one *energy* for each class, ``CE + η·energy
loss``. 2. *Expand*: a copy of the first backbone learns alone on new images and exemplars. It has
one output for each old task, one for each new class, and energies for all classes. The energy loss
gives rotated images, moved a few gradient steps, to the energies. 3. *Fuse*: two numbers for each
old task, α and β, learn how the modules' outputs are added. 4. Herd exemplars.

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

Expect as many parameters as DER's and lower accuracy: the errors of the fusions add up. A step of
expansion costs about four training passes.

Source: Wang, Zhou, Liu, Ye, Bian, Zhan, Zhao, *BEEF: Bi-Compatible Class-Incremental Learning via
Energy-Based Expansion and Fusion*, ICLR 2023.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Literal, final

import torch
from pydantic import Field
from torch import Tensor, nn
from typing_extensions import override

from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.engine.phase import Batch, Loss, Mode, Objective, Part, Phase
from grace.methods.classification import class_prior, classification
from grace.methods.herding import balanced, balanced_size
from grace.methods.method import Method, Outcome, Steps
from grace.methods.module_factory import ModuleFactory
from grace.methods.network_parts import frozen_network, trained_network
from grace.methods.planning import Coming, PlannedPhase
from grace.methods.state import StateValues
from grace.nn.backbone import Backbone
from grace.nn.expandable import ExpandableNetwork, copy_of
from grace.nn.heads import MASKED, Head
from grace.nn.losses.classification import cross_entropy
from grace.nn.losses.energy import (
    Affine,
    batch_energy,
    energy_loss,
    energy_share,
    fused_rows,
    module_labels,
    output_log_prior,
)
from grace.settings.method import NOT_ZERO, PriorSettings, Traits
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
class Beef(Method):
    """One backbone per task, and one linear head whose rows the fusions computed."""

    traits = Traits(grows_every_task=True, freezes_old_network=True)

    variants = {"released": {"old_bias": "newest", "old_batch_norm": "train"}}
    exceptions = {
        "chooses": {"fuse": "trains on as many images of each class"},
        "alone": {"expand": "the new module trains without the old network beside it"},
        "headless": {
            "expand": "the module has a head of its own",
            "fuse": "the rows that the modules trained are joined after it",
        },
    }

    class Settings(PriorSettings):
        needs = (
            ("energy_(steps|lr|noise)", "energy_weight", NOT_ZERO),
            ("energy_(lr|noise)", "energy_steps", NOT_ZERO),
            ("alignment", "class_prior", "none"),
        )

        base: Recipe = Recipe(epochs=200, schedule="cosine", weight_decay=5e-4)
        """recipe of the first task"""
        expand: Recipe = Recipe(epochs=170, schedule="cosine", weight_decay=5e-4)
        """recipe of every later task's new module"""
        fuse: Recipe = Recipe(epochs=60, lr=0.05, schedule="cosine", weight_decay=5e-4)
        """recipe of the fusion that follows; it trains α and β only"""
        energy_weight: float = Field(0.01, ge=0)
        """η: weight of the energy loss. Higher: the module gives less confidence to images unlike
        its own, and fits its own less; 0: no energy loss, which saves most of the time"""
        energy_steps: int = Field(3, ge=0)
        """gradient steps from the rotated image to the energy sample. More: samples are closer to
        what the module takes for a class; each step costs a forward and half a backward pass"""
        energy_lr: float = Field(1e-2, ge=0)
        """size of these steps. Higher: samples move further from the rotated image"""
        energy_noise: float = Field(1e-3, ge=0)
        """standard deviation of the noise after each step, in normalised pixels. Higher: samples
        are spread out more"""
        alignment: float = Field(1.7, gt=0)
        """divisor of the old tasks' logits while a module trains. Higher: old classes are favoured
        more in predictions, where the divisor is absent; 1: no effect. Without effect with a
        class_prior, which corrects the same"""
        old_bias: Literal["sum", "newest"] = "sum"
        """bias of an old class. sum: over all modules, like its weights (the paper); newest: that
        of the newest module alone (released behaviour)"""
        old_batch_norm: Literal["eval", "train"] = "eval"
        """batch norm of frozen backbones. eval: unchanged; train: all but the first normalise by
        the batch and update their statistics (released behaviour)"""

    settings: Settings

    def __init__(self, settings: Settings, factory: ModuleFactory, memory: ExemplarMemory) -> None:
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


Module = Callable[[Tensor, Mode | None], tuple[Tensor, Tensor]]
"""Maps images (B, C, H, W) to a module's outputs (B, R) and energies (B, K)."""


def module_objective(
    settings: Beef.Settings,
    labels_of: Tensor,
    num_old: int,
    backbone: str,
    heads: Sequence[str],
    log_prior: Tensor | None,
) -> Objective:
    """Make the objective L = CE(z, y) + η·L_en of one module.

    All classes of an old task are one output. The logits of old tasks are divided by the alignment,
    or, with a class prior, the prior is added instead.

    Args:
        settings: η, and how samples are made.
        labels_of: the output of each class, shape (K,).
        num_old: outputs of old tasks, the first ones.
        backbone: name of the part that reads the images.
        heads: names of the parts that give the outputs, in order; the part "energy" gives the
            energies.
        log_prior: of the outputs, shape (R,); ``None``: no prior.
    """
    divisor = torch.ones(int(labels_of.max()) + 1, device=labels_of.device)
    if settings.class_prior == "none":
        divisor[:num_old] = settings.alignment

    def run(batch: Batch, images: Tensor, mode: Mode | None) -> tuple[Tensor, Tensor]:
        features = batch.run(backbone, images, mode=mode)
        outputs = [batch.run(head, features) for head in heads]
        return torch.cat(outputs, dim=1), batch.run("energy", features)

    def objective(batch: Batch) -> dict[str, Loss]:
        labels = labels_of[batch.labels]
        logits = torch.cat([batch[head] for head in heads], dim=1) / divisor
        losses = {"classification": Loss(cross_entropy(logits, labels, log_prior))}
        if settings.energy_weight:
            module = partial(run, batch)
            outputs, energies = module(energy_samples(settings, batch, module), None)
            loss = energy_loss(outputs, energies, batch.labels, batch.everyone(labels))
            losses["energy"] = Loss(loss, settings.energy_weight)
        return losses

    return objective


def energy_samples(settings: Beef.Settings, batch: Batch, module: Module) -> Tensor:
    """Make energy samples: change images (B, C, H, W) so that the module gives them less energy.

    x ← x − lr·∇ log Σ_n Σ_k σ([z, e](x_n))_k, and noise, from the batch rotated by 180°; the sum is
    over the whole batch.

    Args:
        settings: number and size of the steps, and their noise.
        batch: its images, rotated by 180°, are the start.
        module: as it stands, in eval mode.
    """
    samples = batch.images.flip(2, 3)
    for _ in range(settings.energy_steps):
        samples.requires_grad_(True)
        shares = energy_share(*module(samples, "eval"))
        everyone = batch.everyone(shares.detach())
        # By the samples alone: no gradient of any weight is computed.
        (slope,) = torch.autograd.grad(batch_energy(shares, everyone), samples)
        noise = settings.energy_noise * batch.normal(samples)
        samples = samples.detach() - settings.energy_lr / len(everyone) * slope + noise
    return samples


@final
class Fusion(nn.Module):
    """One head for all modules: features (B, d) of each → logits (B, K); only α and β train.

    Args:
        old: weight (K_old, D) and bias (K_old,) of the old classes over the old features.
        prototypes: the newest module's trained head for old tasks.
        new: its trained head for new classes.
        tasks: task of each old class, from 0, shape (K_old,).
        forgotten: classes whose logits are masked.
    """

    def __init__(
        self, old: Affine, prototypes: Head, new: Head, tasks: Tensor, forgotten: Collection[int]
    ) -> None:
        super().__init__()
        self.alpha = nn.Parameter(old[0].new_zeros(prototypes.num_classes))
        self.beta = nn.Parameter(old[0].new_zeros(prototypes.num_classes))
        self._fixed = old, affine(prototypes), affine(new)
        self._tasks = tasks
        self._hidden = torch.zeros(len(tasks) + new.num_classes, dtype=torch.bool)
        self._hidden[list(forgotten)] = True
        self._hidden = self._hidden.to(tasks.device)

    def rows(self) -> Affine:
        """Return weight (K, D) and bias (K,) of the head."""
        return fused_rows(*self._fixed, (self.alpha, self.beta), self._tasks)

    @override
    def forward(self, *features: Tensor) -> Tensor:
        logits = nn.functional.linear(torch.cat(features, dim=1), *self.rows())
        return logits.masked_fill(self._hidden, MASKED)


def affine(head: Head) -> Affine:
    """Return weight (K, D) and bias (K,) of a linear head, without gradients."""
    return head.get_parameter("weight").detach(), head.get_parameter("bias").detach()
