"""Measure the loss of a network as a function of one part's parameters.

Shapes: N images of the probe set, B of them in a chunk.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from grace.data.images import LabelledImages
from grace.engine import parts as graph
from grace.engine.loss_meter import NonFiniteLossError
from grace.engine.phase import LossProbe
from grace.engine.work import WorkDone
from grace.nn.capacity import LossSurface, measure


def measured(
    item: LossProbe,
    modules: Mapping[str, nn.Module],
    batches: Callable[[LabelledImages], Iterable[tuple[Tensor, Tensor]]],
    draws: Callable[[str], torch.Generator],
    culprit: WorkDone | None,
) -> dict[str, float]:
    """Draw the probe set, and measure the loss around the weights of the probed part.

    Args:
        item: the network, its part, the images and the measures.
        modules: the module to run for each part, in eval mode.
        batches: cuts a set of images into normalised batches.
        draws: makes the generator of a purpose.
        culprit: the phase before it.

    Returns:
        The values by name.

    Raises:
        NonFiniteLossError: naming the measure and the phase.
    """
    order = torch.randperm(len(item.data), generator=draws("images"))
    chosen = item.data.subset(order[: item.settings.images])
    found = measure(loss_surface(item, modules, batches(chosen)), item.settings, draws)
    bad = next((name for name, value in found.items() if not math.isfinite(value)), None)
    if bad is not None:
        raise NonFiniteLossError(
            f"{bad} is not finite in '{item.name}'" + (f" after {culprit.end}" if culprit else ""),
            culprit.name if culprit else "",
        )
    return found


def loss_surface(
    item: LossProbe, modules: Mapping[str, nn.Module], batches: Iterable[tuple[Tensor, Tensor]]
) -> LossSurface:
    """Return the mean cross-entropy of the probe set around the weights of the probed part.

    Parts that do not depend on it run once; their outputs are kept.

    Args:
        item: the network, and its part.
        modules: the module to run for each part, in eval mode.
        batches: the probe set: normalised images (B, C, H, W) and class indices (B,).
    """
    moving = graph.depending(item.parts, item.probed)
    later = {name: part for name, part in item.parts.items() if name in moving}
    fixed = {name: part for name, part in item.parts.items() if name not in moving}
    needed = {read for part in later.values() for read in part.reads} - moving
    rows: dict[str, list[Tensor]] = {name: [] for name in needed}
    targets: list[Tensor] = []
    with torch.no_grad():
        for images, labels in batches:
            outputs = {"images": images, **graph.run(fixed, modules, images)}
            for name in needed:
                rows[name].append(outputs[name])
            targets.append(labels)
    known = {name: torch.cat(values) for name, values in rows.items()}
    truth, probed, logits = torch.cat(targets), modules[item.probed], list(item.parts)[-1]

    def losses(parameters: Mapping[str, Tensor], chunk: slice) -> Tensor:
        def forward(module: nn.Module, *inputs: Any) -> Any:  # noqa: ANN401 - as the module gives
            if module is probed:
                return functional_call(module, dict(parameters), inputs)
            return module(*inputs)

        given = {name: values[chunk] for name, values in known.items()}
        images = given.pop("images", truth)  # Behind a trunk, no part reads images.
        # The fast kernels of attention have no second derivative.
        with sdpa_kernel(SDPBackend.MATH):
            outputs = graph.run(later, modules, images, forward, given)
        return F.cross_entropy(outputs[logits], truth[chunk], reduction="none")

    return LossSurface(dict(probed.named_parameters()), losses, len(truth))
