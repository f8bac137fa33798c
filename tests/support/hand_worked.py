"""Networks of single numbers on white images, whose training can be worked by hand.

A normalised pixel is 1: ``MeanTimes(w)`` gives w, and behind ``Times(t)`` it gives w·t.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.data.augmentation import build_augmentation
from grace.data.images import LabelledImages, TensorImages
from grace.engine.checkpoint import Snapshot
from grace.engine.phase import Batch, Loss, Part, Phase
from grace.engine.trainer import Trainer
from grace.settings.augmentation import AugmentationSetting
from grace.settings.experiment import EngineSettings
from grace.settings.recipe import Recipe


def trainer(
    seed: int = 1, augmentation: AugmentationSetting = "none", progress: Any = None, **engine: Any
) -> Trainer:
    """A trainer whose test transform divides by 255."""
    settings = EngineSettings(**{"device": "cpu", "compile": False, "threads": 1, **engine})
    transform = build_augmentation(augmentation, (0.0,) * 3, (1.0,) * 3, 8)
    made = Trainer(settings, transform, seed, progress)
    made.start_task(1)
    return made


def white(labels: Sequence[int]) -> LabelledImages:
    """All-white images: every normalised pixel is 1."""
    pixels = torch.full((len(labels), 3, 8, 8), 255, dtype=torch.uint8)
    return LabelledImages(TensorImages(pixels), torch.tensor(labels, dtype=torch.int64))


@final
class Times(nn.Module):
    """x → t·x."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        return self.value * inputs


@final
class MeanTimes(nn.Module):
    """x → w · mean of x + b, (B, 1)."""

    def __init__(self, value: float, bias: float = 0.0) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))
        self.bias = nn.Parameter(torch.tensor(bias))

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        return self.value * inputs.mean(dim=tuple(range(1, inputs.ndim)))[:, None] + self.bias


PLAIN = Recipe(epochs=1, batch_size=8, lr=0.1, momentum=0, weight_decay=0, schedule="constant")


def recipe(**changes: Any) -> Recipe:
    """Plain gradient descent at rate 0.1, changed."""
    return Recipe.model_validate({**PLAIN.model_dump(), **changes})


def squares(batch: Batch) -> dict[str, Loss]:
    """½(f − y)² of the part "f"."""
    return {"squares": Loss(0.5 * (batch["f"][:, 0] - batch.labels).square().mean())}


def phase(parts: Mapping[str, Part], **fields: Any) -> Phase:
    """A phase of eight white images of label 0, unless told otherwise."""
    given: dict[str, Any] = {
        "name": "test",
        "objective": squares,
        "recipe": PLAIN,
        "data": white([0] * 8),
    }
    return Phase(parts=parts, **(given | fields))


def value_of(module: nn.Module, name: str = "value") -> float:
    """A parameter of one number."""
    return float(module.get_parameter(name).detach())


@final
class Shelf:
    """Keeps the snapshot of one epoch, as a file would: tensors on their own."""

    is_shared = False

    def __init__(self, epoch: int = 0, snapshot: Snapshot | None = None) -> None:
        self.epoch = epoch
        self.snapshot = snapshot

    def saved(self) -> Snapshot | None:
        return self.snapshot

    def offer(self, take: Callable[[], Snapshot], *, is_last: bool) -> None:
        snapshot = take()
        if snapshot.epochs == self.epoch:
            tensors = {name: tensor.clone() for name, tensor in snapshot.tensors.items()}
            self.snapshot = replace(snapshot, tensors=tensors)


@final
class Killed(BaseException):
    """As an interrupt, but one that pytest does not take for its own."""
