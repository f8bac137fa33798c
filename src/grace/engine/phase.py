"""What a method asks of the engine: phases that optimise and sweeps that only look.

Both are pure data. A method yields them from ``learn``; the trainer carries them out, and control
comes back to the method when they are done.

Shapes: B images in a batch, d features.
"""

from collections.abc import Callable, Mapping, Sequence
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

    Args:
        images: augmented, normalised images (B, C, H, W).
        labels: class indices (B,).
        frozen: outputs of the phase's frozen parts on these very images, in their order, without
            autograd.
        learned: outputs of the phase's backbones in training, in their order, with autograd.
        epoch: epoch of the phase, from 0.
        generator: for whatever the objective draws, seeded for this epoch.
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
    """One named term of an objective: its scalar value and the weight it enters the sum with."""

    value: Tensor
    weight: float = 1.0


Objective = Callable[[Batch], Mapping[str, Loss]]
"""Named losses of a batch, free of data-dependent branches."""


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
        teacher: the network that the phase distils into a smaller one, if it does: whoever wants
            to can measure what that costs. The engine does not use it.
    """

    name: str
    backbones: Sequence[nn.Module]
    heads: Sequence[nn.Module] = ()
    frozen: Sequence[nn.Module] = ()
    objective: Objective
    recipe: Recipe
    data: LabelledImages
    teacher: ExpandableNetwork | None = None


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
