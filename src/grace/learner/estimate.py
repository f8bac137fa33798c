"""What an update would take: time, memory, bytes on disk, from a short trial on this machine."""

import sys
import time
from dataclasses import dataclass
from typing import final

import torch

from grace.configs.recipe import Recipe
from grace.data.images import LabelledImages, TensorImages
from grace.engine.phase import Batch, Loss, Phase
from grace.learner.learner import Learner
from grace.objectives.classification import cross_entropy


@final
@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What an update is expected to take here."""

    images_per_second: float
    """Of training one backbone, measured."""
    seconds: float
    memory_bytes: int
    """Of the process at its largest."""


def estimate(learner: Learner, num_new: int, num_train: int) -> Estimate:
    """Estimate an update from a trial of a few batches.

    A phase costs its epochs × images × (one training pass + a third of one for each frozen
    backbone): a forward pass takes about a third of a training pass. Branches of a shared trunk
    count as backbones, which is more than they cost. The learner stays as it was.

    Args:
        learner: the learner to be updated.
        num_new: classes that it does not know.
        num_train: images of the update.
    """
    method = learner.method
    recipes = _recipes(learner)
    batch_size = next(iter(recipes.values())).batch_size
    images_per_second = _trial(learner, batch_size)
    is_first = not learner.history
    num_backbones = learner.size().num_backbones
    num_kept = 0 if is_first or not method.uses_memory else len(method.memory)
    passes = 0.0
    for name, recipe in recipes.items():
        if (name == "base") != is_first or (name in ("grow", "boost") and not num_new):
            continue
        frozen = {
            "grow": num_backbones,
            "boost": num_backbones,
            "compress": num_backbones + 1 if num_new else num_backbones,
            "update": num_backbones if method.freezes_old_network else 0,
        }.get(name, 0)
        passes += recipe.epochs * (num_train + num_kept) * (1 + frozen / 3)
    channels, height, width = learner.shape
    pixels = (num_train + num_kept) * channels * height * width
    weights = learner.size().weight_bytes or _fresh_bytes(learner)
    # The backup, the network under way and its momenta stand beside the network.
    return Estimate(
        images_per_second=images_per_second,
        seconds=passes / images_per_second,
        memory_bytes=_peak_bytes() + 2 * pixels + 4 * weights,
    )


def _recipes(learner: Learner) -> dict[str, Recipe]:
    fields = dict(learner.settings.method)
    return {name: value for name, value in fields.items() if isinstance(value, Recipe)}


def _trial(learner: Learner, batch_size: int) -> float:
    """Train a throw-away backbone on blank images; return images per second after the first."""
    workshop = learner.method.workshop
    backbone = workshop.backbone("trial")
    head = workshop.head(backbone.feature_dim, 2, "trial")
    pixels = torch.zeros((2 * batch_size, *learner.shape), dtype=torch.uint8)
    labels = torch.arange(len(pixels)) % 2

    def objective(batch: Batch) -> dict[str, Loss]:
        return {"classification": Loss(cross_entropy(head(batch.learned[0]), batch.labels))}

    phase = Phase(
        name="trial",
        backbones=[backbone],
        heads=[head],
        objective=objective,
        recipe=Recipe(epochs=1, batch_size=batch_size, lr=1e-3),
        data=LabelledImages(TensorImages(pixels), labels),
    )
    learner.trainer.start_task(0)
    learner.trainer.run(phase)  # The first steps also set things up.
    started = time.perf_counter()
    learner.trainer.run(phase)
    return len(pixels) / (time.perf_counter() - started)


def _fresh_bytes(learner: Learner) -> int:
    state = learner.method.workshop.backbone("measured").state_dict()
    return sum(tensor.nbytes for tensor in state.values())


def _peak_bytes() -> int:
    if sys.platform == "win32":
        return 0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak
