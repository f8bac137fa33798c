"""What a method asks of the engine: phases that optimise and sweeps that do not.

All are pure data. A method yields them from ``learn``; the trainer carries them out, and control
comes back to the method when they are done.

Shapes: B images in a batch, d features.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from grace.configs.recipe import Recipe
from grace.data.images import LabelledImages
from grace.networks.expandable import ExpandableNetwork


@final
@dataclass(frozen=True)
class Batch:
    """One step's input to an objective.

    Where several processes share the work, each sees its rows of the batch alone.

    Args:
        images: augmented, normalised images (B, C, H, W).
        labels: class indices (B,).
        frozen: outputs of the phase's frozen parts on these very images, in their order; without
            autograd, unless they read a trunk that trains.
        learned: outputs of the phase's backbones in training, in their order, with autograd.
        epoch: epoch of the phase, from 0.
        generator: for whatever the objective draws, seeded for this epoch. It is alike in all
            processes: draws for single images would meet other images in each.
    """

    images: Tensor
    labels: Tensor
    frozen: Sequence[Tensor]
    learned: Sequence[Tensor]
    epoch: int
    generator: torch.Generator


@final
@dataclass(frozen=True)
class Loss:
    """One named term of an objective.

    Args:
        value: scalar.
        weight: that it enters the sum with.
        num_images: of how many of the batch's images it is the mean, a whole number on the device;
            none if of all, or if it does not depend on them. Several processes weigh their values
            by it.
    """

    value: Tensor
    weight: float = 1.0
    num_images: Tensor | None = None


Objective = Callable[[Batch], Mapping[str, Loss]]
"""Named losses of a batch, free of data-dependent branches.

Each is a mean over images of the batch, or does not depend on them: so the losses of a batch follow
from those of its rows, which several processes compute. No objective of the package is anything
else. One that were (a contrast between images, say) would need the global batch's features, and so
a gathering that ``Passes`` does not do yet.
"""


@final
@dataclass(frozen=True, kw_only=True)
class Phase:
    """One optimisation within a task.

    Args:
        name: what people see: "base", "grow", "compress", …
        backbones: modules images → features that train; the engine runs each once per batch and
            hands the outputs to the objective. They are in train mode.
        heads: further modules that train; the objective calls them itself.
        frozen: modules images → features that do not train; run once per batch without autograd,
            in eval mode, batch norm folded, and left unchanged, buffers too.
        objective: named losses of a batch. Any other module it calls must not train and be in
            eval mode.
        recipe: epochs, batch size, optimiser, schedule.
        data: the images that are drawn from.
        trunk: module images → what all backbones, the frozen ones too, read instead of images, if
            they share one; run once per batch.
        trains_trunk: whether it trains, with gradients from all backbones, or is one of the
            frozen parts.
        teacher: the network that the phase distils into a smaller one, if it does: whoever wants
            to can measure what that costs. The engine does not use it.
        is_common: whether other methods train just this, bit for bit, on the same data with the
            same recipe and seeds, so that its outcome can be shared. The engine does not use it.
    """

    name: str
    backbones: Sequence[nn.Module]
    heads: Sequence[nn.Module] = ()
    frozen: Sequence[nn.Module] = ()
    objective: Objective
    recipe: Recipe
    data: LabelledImages
    trunk: nn.Module | None = None
    trains_trunk: bool = False
    teacher: ExpandableNetwork | None = None
    is_common: bool = False

    @property
    def trained(self) -> Sequence[nn.Module]:
        """What trains on images: the backbones, and the trunk where it does."""
        trunk = [self.trunk] if self.trunk is not None and self.trains_trunk else []
        return [*self.backbones, *trunk]

    @property
    def untrained(self) -> Sequence[nn.Module]:
        """What does not: the frozen parts, and the trunk where it is one of them."""
        trunk = [self.trunk] if self.trunk is not None and not self.trains_trunk else []
        return [*self.frozen, *trunk]


@final
@dataclass(frozen=True)
class PhaseResult:
    """What a finished phase tells: the mean of every named loss over its last epoch."""

    losses: Mapping[str, float]


class Reducer(Protocol):
    """Accumulates over the batches of a sweep and gives a value at its end."""

    def update(self, outputs: Tensor, labels: Tensor) -> None:
        """Take one batch's features (B, Σd) and class indices (B,)."""

    def result(self) -> Any:  # noqa: ANN401 - each reducer has its own value
        """Return the value over all batches seen."""


@final
@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One pass over data without stepping, that gives its reducer's value.

    Args:
        name: what people see: "assess", "herd", "evaluate", …
        backbones: modules images → features, run in eval mode without autograd, batch norm
            folded; the reducer gets their outputs concatenated, (B, Σd).
        data: the images, in this order.
        reducer: takes the outputs.
        augmented: pass the images through the training augmentation, one draw each, instead of
            the test transform.
    """

    name: str
    backbones: Sequence[nn.Module]
    data: LabelledImages
    reducer: Reducer
    augmented: bool = False


class GradientReducer(Protocol):
    """Accumulates over the batches of a gradient sweep and gives a value at its end."""

    def update(self, gradients: Mapping[str, Tensor]) -> None:
        """Take the gradients of one batch's loss, by the names of ``named_parameters``."""

    def result(self) -> Any:  # noqa: ANN401 - each reducer has its own value
        """Return the value over all batches seen."""


@final
@dataclass(frozen=True, kw_only=True)
class GradientSweep:
    """One pass over shuffled, augmented batches that takes gradients without stepping.

    Everything is in train mode: batch norm normalises by the batch, and its running statistics
    move. No parameter does.

    Args:
        name: what people see: "fisher", …
        backbones: modules images → features, run once per batch; the objective gets the outputs.
        heads: further modules; the objective calls them itself.
        objective: named losses of a batch, whose weighted sum is differentiated.
        data: the images.
        batch_size: images per batch.
        reducer: takes the gradients of every batch.
    """

    name: str
    backbones: Sequence[nn.Module]
    heads: Sequence[nn.Module] = ()
    objective: Objective
    data: LabelledImages
    batch_size: int
    reducer: GradientReducer

    @property
    def trained(self) -> Sequence[nn.Module]:
        """What is in train mode beside the heads."""
        return self.backbones

    def buffers(self) -> dict[str, Tensor]:
        """Name the buffers that the pass may move; the tensors are the modules' own."""
        fixed = named_parameters(self.backbones, self.heads)
        state = named_state(self.backbones, self.heads)
        return {name: tensor for name, tensor in state if name not in fixed}


Work = Phase | Sweep | GradientSweep
"""What a method yields."""


def named_parameters(
    backbones: Sequence[nn.Module], heads: Sequence[nn.Module]
) -> dict[str, nn.Parameter]:
    """Name the parameters of what trains: ``backbone.0.stem.0.weight``, ``head.0.bias``."""
    return {
        f"{place}.{name}": parameter
        for place, module in _places(backbones, heads)
        for name, parameter in module.named_parameters()
    }


def named_state(
    backbones: Sequence[nn.Module], heads: Sequence[nn.Module]
) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and buffers of what trains, named alike; the tensors are the modules'."""
    for place, module in _places(backbones, heads):
        for name, tensor in module.state_dict().items():
            yield f"{place}.{name}", tensor


def _places(
    backbones: Sequence[nn.Module], heads: Sequence[nn.Module]
) -> Iterator[tuple[str, nn.Module]]:
    for kind, modules in (("backbone", backbones), ("head", heads)):
        for i, module in enumerate(modules):
            yield f"{kind}.{i}", module
