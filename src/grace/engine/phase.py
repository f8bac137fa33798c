"""What a method asks of the engine: phases that optimise and sweeps that do not.

All are data. A method yields them from ``learn``; the trainer carries them out, and control comes
back to the method when they are done.

Shapes: B rows in a batch (its images, each once for every view), d features.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, final

import torch
from torch import Tensor, nn

from grace.configs.recipe import Recipe
from grace.data.images import LabelledImages
from grace.data.operations import Operation
from grace.networks.expandable import ExpandableNetwork

Mode = Literal["train", "eval"]


@final
@dataclass(frozen=True)
class Part:
    """One module of a phase: what it reads, and whether it trains.

    Args:
        module: called with the outputs that it reads; gives a tensor or a tuple.
        reads: ``"images"`` or names of parts that stand before this one.
        trains: whether all of its parameters train, or the names of those that do.
        mode: of batch norm and dropout; none is train where anything trains, eval elsewhere.
        group: the recipe's parameter group that its parameters belong to.
    """

    module: nn.Module
    reads: Sequence[str] = ("images",)
    trains: bool | Collection[str] = True
    mode: Mode | None = None
    group: str = "default"

    @property
    def changes(self) -> bool:
        """Whether a pass may change it: its parameters, or the running statistics alone."""
        return bool(self.trains) or self.mode == "train"

    @property
    def is_training(self) -> bool:
        """Whether it is in train mode."""
        return self.mode == "train" if self.mode else bool(self.trains)

    def trained(self) -> dict[str, nn.Parameter]:
        """Map names to the parameters that train."""
        own = dict(self.module.named_parameters())
        if isinstance(self.trains, bool):
            return own if self.trains else {}
        assert own.keys() >= set(self.trains), set(self.trains) - own.keys()
        # In the module's order, which is the same in all processes whatever holds the names.
        return {name: parameter for name, parameter in own.items() if name in self.trains}


Parts = Mapping[str, Part]
"""A graph of modules, each after all that it reads."""

Run = Callable[..., Any]
"""``run(part name, *inputs, mode=None)``: a part's output on other inputs than the batch's."""


@final
@dataclass(frozen=True)
class Batch:
    """One step's input to an objective.

    Where several processes share the work, each sees its rows of the batch alone.

    Args:
        images: augmented, normalised images (B, C, H, W); the views of an image stand in a row.
        labels: class indices (B,).
        outputs: what every part of the phase gave, by name. Autograd is off where neither a part
            nor anything before it trains.
        epoch: epoch of the phase, from 0.
        step: batch of the epoch, from 0.
        generator: for whatever the objective draws, seeded for this epoch. It is identical on all
            processes: do not draw one number per row, but see ``normal``.
        state: the phase's own tensors; what changes them in place is kept with the phase.
        place: this process's rows among those of the whole batch; none if it has all.
        num_rows: rows of the whole batch; none if this process has all.
        call: runs a part by name, see ``run``.
        gather: collects rows from all processes, see ``everyone``.
    """

    images: Tensor
    labels: Tensor
    outputs: Mapping[str, Any]
    epoch: int = 0
    step: int = 0
    generator: torch.Generator = field(default_factory=torch.Generator)
    state: Mapping[str, Tensor] = field(default_factory=dict)
    place: slice | None = None
    num_rows: int | None = None
    call: Run | None = None
    gather: Callable[[Tensor], Tensor] = lambda rows: rows

    def __getitem__(self, part: str) -> Tensor:
        """Return the output of a part that gives one tensor."""
        output = self.outputs[part]
        assert isinstance(output, Tensor), f"part {part} gives several tensors: use outputs"
        return output

    def run(self, part: str, *inputs: Tensor, mode: Mode | None = None) -> Any:  # noqa: ANN401 - as the module gives
        """Run a part on other inputs, with its weights as they stand now.

        Args:
            part: name of the part.
            inputs: as its module takes them.
            mode: of batch norm and dropout in this pass; none leaves the part's own.
        """
        assert self.call is not None
        return self.call(part, *inputs, mode=mode)

    def normal(self, like: Tensor) -> Tensor:
        """Draw standard normal numbers of the shape of rows (B, …), as if by a single process."""
        num_rows = len(like) if self.num_rows is None else self.num_rows
        draws = self.generator
        if like.device.type != "cpu":
            # Drawn there: no step waits for numbers from the CPU.
            seed = int(torch.randint(2**62, (), generator=draws))
            draws = torch.Generator(like.device).manual_seed(seed)
        drawn = torch.randn(num_rows, *like.shape[1:], generator=draws, device=draws.device)
        return (drawn if self.place is None else drawn[self.place]).to(like)

    def everyone(self, rows: Tensor) -> Tensor:
        """Collect rows (B, …) of all processes in the order of the whole batch, with gradients.

        A loss that compares rows with each other is computed from these, alike on all processes.
        """
        return self.gather(rows)


@final
@dataclass(frozen=True)
class Loss:
    """One named term of an objective.

    Args:
        value: scalar.
        weight: that it enters the sum with.
        over: what the value is a mean over. ``"images"``: all rows of ``Batch.images``. A whole
            number on the device: so many of those rows. ``"batch"``: computed alike on all
            processes, from ``Batch.everyone``. ``"nothing"``: it does not depend on images.
    """

    value: Tensor
    weight: float | Tensor = 1.0
    over: Literal["images", "batch", "nothing"] | Tensor = "images"


Objective = Callable[[Batch], Mapping[str, Loss]]
"""Named losses of a batch, free of data-dependent branches."""


class LossGradients(Protocol):
    """Gradients of single losses, for a rule that combines them otherwise than by their sum."""

    state: Mapping[str, Tensor]
    """The phase's own tensors, to be changed in place."""

    def of(self, losses: Collection[str], parameters: Collection[str]) -> dict[str, Tensor]:
        """Return the gradient of the weighted sum of some losses over the whole batch.

        Args:
            losses: their names.
            parameters: named ``<part>.<parameter>``; 0 where the losses do not reach them.
        """


GradientRule = Callable[[LossGradients], Mapping[str, Tensor]]
"""Gives, after the losses of a batch are known, the gradients of some parameters by name; all
others get that of the sum of all losses."""


@final
@dataclass(frozen=True, kw_only=True)
class Phase:
    """One optimisation within a task.

    Args:
        name: what people see: "base", "grow", "compress", …
        parts: the graph of modules; the engine runs each once per batch, in this order, and hands
            the outputs to the objective. What does not train is left as it is, buffers too.
        objective: named losses of a batch.
        recipe: epochs, batch size, optimiser, schedule.
        data: the images that are drawn from.
        views: augmented rows that each image has in a batch, in a row.
        augmentation: operations in place of the learner's; none takes those.
        rule: combines the gradients of the losses; none takes that of their weighted sum.
        after_step: runs after every step without autograd: clamps, proximal steps.
        state: named tensors of this phase alone, such as accumulators: a phase that is interrupted
            goes on with them as they were.
        teacher: the network that the phase distils into a smaller one, if it does: whoever wants
            to can measure what that costs. The engine does not use it.
        is_common: whether other methods train just this, bit for bit, on the same data with the
            same recipe and seeds, so that its outcome can be shared. The engine does not use it.
    """

    name: str
    parts: Parts
    objective: Objective
    recipe: Recipe
    data: LabelledImages
    views: int = 1
    augmentation: Sequence[Operation] | None = None
    rule: GradientRule | None = None
    after_step: Callable[[], None] | None = None
    state: Mapping[str, Tensor] = field(default_factory=dict)
    teacher: ExpandableNetwork | None = None
    is_common: bool = False

    @property
    def phases(self) -> "Sequence[Phase]":
        """This phase alone, as ``Rounds.phases`` are several."""
        return (self,)


@final
@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Phases in turn, an epoch of each, every one with an optimiser that it keeps.

    Args:
        name: what people see.
        phases: of equally many epochs and different names; a part may train in one and not in
            another.
    """

    name: str
    phases: Sequence[Phase]

    def __post_init__(self) -> None:
        assert len({phase.recipe.epochs for phase in self.phases}) == 1
        assert len({phase.name for phase in self.phases}) == len(self.phases)


@final
@dataclass(frozen=True)
class PhaseResult:
    """The mean of every named loss over a finished phase's last epoch."""

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
        parts: run in eval mode without autograd, whatever they say; the reducer gets the outputs
            of those that no other part reads, side by side (B, Σd).
        data: the images, in this order.
        reducer: takes the outputs.
        augmented: pass the images through the training augmentation, one draw each, instead of
            the test transform.
    """

    name: str
    parts: Parts
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

    What trains is in train mode: batch norm normalises by the batch, and its running statistics
    move. No parameter does.

    Args:
        name: what people see: "fisher", …
        parts: the graph of modules, as a phase's.
        objective: named losses of a batch, whose weighted sum is differentiated.
        data: the images.
        batch_size: images per batch.
        reducer: takes the gradients of every batch.
    """

    name: str
    parts: Parts
    objective: Objective
    data: LabelledImages
    batch_size: int
    reducer: GradientReducer


Work = Phase | Rounds | Sweep | GradientSweep
"""What a method yields."""
