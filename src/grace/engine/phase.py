"""The work that a method yields to the engine: phases, which optimise, and sweeps, which do not.

All are data. A method yields them from ``learn``; the trainer carries them out and returns the
result to the method.

Shapes: B rows in a batch (its images, each once for every view), d features.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, final

import torch
from torch import Tensor, nn

from grace.data.augmentation import Operation
from grace.data.images import LabelledImages
from grace.nn.expandable import ExpandableNetwork
from grace.settings.experiment import MeasureSettings
from grace.settings.recipe import Recipe

Mode = Literal["train", "eval"]


@final
@dataclass(frozen=True)
class Part:
    """One module of a phase: its inputs, and the parameters that train.

    Args:
        module: called with the outputs that it reads; gives a tensor or a tuple.
        reads: ``"images"``, names of parts that stand before this one, or of the phase's rows.
        trains: True if all of its parameters train, False if none, or the names of those that do.
        mode: of batch norm and dropout; ``None``: train if anything in it trains, else eval.
        group: the recipe's parameter group that its parameters belong to.
    """

    module: nn.Module
    reads: Sequence[str] = ("images",)
    trains: bool | Collection[str] = True
    mode: Mode | None = None
    group: str = "default"

    @property
    def changes(self) -> bool:
        """True if training changes it: its parameters, or its running statistics alone."""
        return bool(self.trains) or self.mode == "train"

    @property
    def is_training(self) -> bool:
        """True if it is in train mode."""
        return self.mode == "train" if self.mode else bool(self.trains)

    def trained(self) -> dict[str, nn.Parameter]:
        """Return the parameters that train, by name."""
        own = dict(self.module.named_parameters())
        if isinstance(self.trains, bool):
            return own if self.trains else {}
        assert own.keys() >= set(self.trains), set(self.trains) - own.keys()
        # In the module's order, which is the same in all processes whatever holds the names.
        return {name: parameter for name, parameter in own.items() if name in self.trains}


Parts = Mapping[str, Part]
"""A graph of modules, each after all that it reads."""

Run = Callable[..., Any]
"""``run(part name, *inputs, mode=None)`` gives a part's output for inputs of your own."""


@final
@dataclass(frozen=True)
class Batch:
    """One step's input to an objective.

    If several processes share the work, each has its own rows of the batch.

    Args:
        images: augmented, normalised images (B, C, H, W); the views of an image stand in a row.
        labels: class indices (B,).
        outputs: the output of every part of the phase, by name. Autograd is off for a part if
            nothing in it or before it trains.
        epoch: epoch of the phase, from 0.
        step: batch of the epoch, from 0.
        generator: for the objective's random numbers, seeded for this epoch. It is identical on
            every rank: do not draw one number per row from it; use ``normal``.
        state: the phase's own tensors. Change them in place; snapshots store them.
        place: this process's rows among those of the whole batch; ``None``: all rows.
        num_rows: rows of the whole batch; ``None``: this process has all of them.
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
        """Return the output of a part that gives one tensor, of any shape."""
        output = self.outputs[part]
        assert isinstance(output, Tensor), f"part {part} gives several tensors: use outputs"
        return output

    def run(self, part: str, *inputs: Tensor, mode: Mode | None = None) -> Any:  # noqa: ANN401 - as the module gives
        """Run a part on other inputs, with its weights as they stand now.

        Args:
            part: name of the part.
            inputs: of its module.
            mode: of batch norm and dropout in this call; ``None``: the part's own.
        """
        assert self.call is not None
        return self.call(part, *inputs, mode=mode)

    def normal(self, like: Tensor) -> Tensor:
        """Draw standard normal numbers in the shape of ``like`` (B, …), as one process would."""
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

        Use it for losses that compare rows with each other: each process computes the same loss.
        """
        return self.gather(rows)


@final
@dataclass(frozen=True)
class Loss:
    """One named term of an objective.

    Args:
        value: scalar.
        weight: its factor in the sum of all losses.
        over: what the value is a mean over. ``"images"``: all rows of ``Batch.images``. A scalar
            tensor: this number of those rows. ``"batch"``: the whole batch, computed from
            ``Batch.everyone``, the same on every rank. ``"nothing"``: it depends on no image.
    """

    value: Tensor
    weight: float | Tensor = 1.0
    over: Literal["images", "batch", "nothing"] | Tensor = "images"


Objective = Callable[[Batch], Mapping[str, Loss]]
"""Named losses of a batch, free of data-dependent branches."""


class LossGradients(Protocol):
    """Gradients of single losses, for a rule that does not simply add them up."""

    state: Mapping[str, Tensor]
    """The phase's own tensors, of any shape; change them in place."""

    def of(self, losses: Collection[str], parameters: Collection[str]) -> dict[str, Tensor]:
        """Return the gradients of some losses' weighted sum, each in its parameter's shape.

        Args:
            losses: their names.
            parameters: names ``<part>.<parameter>``. A parameter that no loss depends on gets 0.
        """


GradientRule = Callable[[LossGradients], Mapping[str, Tensor]]
"""Returns the gradients of some parameters by name, after the losses of a batch are computed. All
other parameters get the gradient of the weighted sum."""


@final
@dataclass(frozen=True, kw_only=True)
class Phase:
    """One optimisation within a task.

    Args:
        name: shown to people, and seeds the draws: "base", "grow", "compress", …
        parts: the graph of modules; the engine runs each once per batch, in this order, and passes
            the outputs to the objective. Parts that do not train do not change, buffers included.
        objective: named losses of a batch.
        recipe: epochs, batch size, optimiser, schedule.
        data: the images to train on.
        views: augmented rows per image in a batch, one after another.
        augmentation: operations for this phase; ``None``: the learner's.
        rule: combines the gradients of the losses; ``None``: the gradient of their weighted sum.
        after_step: runs after every step without autograd: clamps, proximal steps.
        state: named tensors of this phase alone, such as accumulators; snapshots store them.
        rows: tensors with a row for each image of ``data``, such as features computed before. A
            part may read them by name. With rows no image is read, and ``Batch.images`` is empty.
        teacher: the network that the phase distils into a smaller one, so that the loss of
            accuracy can be measured. The engine does not use it.
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
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    teacher: ExpandableNetwork | None = None

    def __post_init__(self) -> None:
        assert all(len(values) == len(self.data) for values in self.rows.values())
        assert not self.rows or self.views == 1

    @property
    def phases(self) -> "Sequence[Phase]":
        """This phase alone; ``Rounds`` has several."""
        return (self,)


@final
@dataclass(frozen=True, kw_only=True)
class Rounds:
    """Phases that take turns, one epoch each; each keeps its own optimiser.

    Args:
        name: shown to people.
        phases: with equal numbers of epochs and different names. A part may train in one phase
            and not in another.
    """

    name: str
    phases: Sequence[Phase]

    def __post_init__(self) -> None:
        assert len({phase.recipe.epochs for phase in self.phases}) == 1
        assert len({phase.name for phase in self.phases}) == len(self.phases)


@final
@dataclass(frozen=True)
class PhaseResult:
    """The result of a phase: the mean of every loss over its last epoch."""

    losses: Mapping[str, float]


class Reducer(Protocol):
    """Computes the value of a sweep batch by batch."""

    def update(self, outputs: Tensor, labels: Tensor) -> None:
        """Add one batch's features (B, Σd) and class indices (B,)."""

    def result(self) -> Any:  # noqa: ANN401 - each reducer has its own value
        """Return the value over all batches seen."""


@final
@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One pass over data without training; its result is the reducer's value.

    Args:
        name: shown to people: "assess", "herd", "evaluate", …
        parts: all run in eval mode without autograd. The reducer gets the outputs that no other
            part reads, side by side (B, Σd).
        data: the images, in this order.
        reducer: gets the outputs of every batch.
        augmented: augment each image once as in training, instead of the test transform.
    """

    name: str
    parts: Parts
    data: LabelledImages
    reducer: Reducer
    augmented: bool = False


class GradientReducer(Protocol):
    """Computes the value of a gradient sweep batch by batch."""

    def update(self, gradients: Mapping[str, Tensor]) -> None:
        """Add the gradients of one batch's loss, by parameter and in its shape."""

    def result(self) -> Any:  # noqa: ANN401 - each reducer has its own value
        """Return the value over all batches seen."""


@final
@dataclass(frozen=True, kw_only=True)
class GradientSweep:
    """One pass over shuffled, augmented batches that computes gradients but takes no step.

    Parts that train are in train mode: batch norm normalises by the batch and updates its running
    statistics. No parameter changes.

    Args:
        name: shown to people: "fisher", …
        parts: the graph of modules, as a phase's.
        objective: named losses of a batch, whose weighted sum is differentiated.
        data: the images.
        batch_size: images per batch.
        reducer: gets the gradients of every batch.
    """

    name: str
    parts: Parts
    objective: Objective
    data: LabelledImages
    batch_size: int
    reducer: GradientReducer


@final
@dataclass(frozen=True, kw_only=True)
class LossProbe:
    """Measures the loss around the weights of one part; the result is values by name.

    It changes no weight, buffer or later draw.

    Args:
        name: shown to people: "probe".
        parts: a network, all in eval mode. The last part gives the logits of all classes.
        probed: the part whose parameters are varied.
        data: the images of which the probe set is drawn, in the test transform.
        settings: which measures, and how exactly.
    """

    name: str
    parts: Parts
    probed: str
    data: LabelledImages
    settings: MeasureSettings


Work = Phase | Rounds | Sweep | GradientSweep | LossProbe
"""The types that a method yields."""
