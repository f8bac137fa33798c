"""Forward and backward passes over batches: what a phase and a gradient sweep share.

Shapes: B rows in a batch.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn

from grace.engine import parts as graph
from grace.engine.device import Device
from grace.engine.parts import Forward
from grace.engine.phase import Batch, GradientSweep, Loss, Mode, Phase
from grace.engine.ranks import Ranks
from grace.engine.work import Seconds

Losses = Mapping[str, Loss]


@final
@dataclass(frozen=True)
class BatchRows:
    """One batch as a process gets it.

    Args:
        images: its rows (B, C, H, W).
        labels: their class indices (B,).
        num_images: images of the whole batch, on all processes.
    """

    images: Tensor
    labels: Tensor
    num_images: int


@final
class Passes:
    """Runs the parts on every batch and leaves the gradients of its losses in the parameters.

    With several processes, each does its rows of a batch; losses are scaled by the share of the
    batch that they are means over, so that they, and then the gradients, add up to the batch's.

    Args:
        work: parts, objective, and what else a phase states.
        modules: what to run for every part: itself, or a folded copy.
        device: where, and in which precision.
        forward: runs a module on its inputs.
        seconds: where the time is noted.
        ranks: the processes that share the work.
    """

    def __init__(
        self,
        work: Phase | GradientSweep,
        modules: Mapping[str, nn.Module],
        device: Device,
        forward: Forward,
        seconds: Seconds,
        ranks: Ranks,
    ) -> None:
        self.parameters = graph.named_parameters(work.parts)
        self.scaler = torch.amp.GradScaler(
            device.torch_device.type, enabled=device.precision == torch.float16
        )
        self._work = work
        self.modules = modules
        off = graph.without_autograd(work.parts)
        self._before = {name: part for name, part in work.parts.items() if name in off}
        self._after = {name: part for name, part in work.parts.items() if name not in off}
        self._device = device
        self._forward = forward
        self._seconds = seconds
        self._ranks = ranks
        self._views, self._rule, self.state = 1, None, dict[str, Tensor]()
        if isinstance(work, Phase):
            self._views, self._rule = work.views, work.rule
            self.state = dict(work.state)

    def over(
        self, batches: Iterator[BatchRows], epoch: int, draws: torch.Generator
    ) -> Iterator[tuple[Losses, int]]:
        """Yield this process's part of each batch's losses, with the batch's gradients in place.

        Args:
            batches: this process's rows.
            epoch: of the phase, from 0.
            draws: for whatever the objective draws.

        Yields:
            Losses, and the number of images of the whole batch.
        """
        clock = time.perf_counter
        before = clock()
        for step, rows in enumerate(batches):
            ready = clock()
            with self._device.autocast():
                with torch.no_grad():
                    outputs = graph.run(self._before, rows.images, self._pass)
                frozen_done = clock()
                outputs = graph.run(self._after, rows.images, self._pass, outputs)
                batch = Batch(
                    rows.images,
                    rows.labels,
                    outputs,
                    epoch=epoch,
                    step=step,
                    generator=draws,
                    state=self.state,
                    place=self._place(rows.num_images),
                    num_rows=self._views * rows.num_images,
                    call=self._run,
                    gather=partial(self._gather, rows.num_images),
                )
                losses = self._part_of(self._work.objective(batch), rows.num_images)
            self._differentiate(losses)
            yield losses, rows.num_images
            stepped = clock()
            self._seconds.data += ready - before
            self._seconds.frozen += frozen_done - ready
            self._seconds.training += stepped - frozen_done
            before = stepped

    def gradients(self) -> dict[str, Tensor]:
        """Name the gradients of the batch at hand; 0 where its losses do not reach."""
        return {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in self.parameters.items()
        }

    def _pass(self, name: str, *inputs: Any) -> Any:  # noqa: ANN401 - as the parts give
        return self._forward(self.modules[name], *inputs)

    def _run(self, name: str, *inputs: Any, mode: Mode | None) -> Any:  # noqa: ANN401
        module = self.modules[name]
        # Not compiled: a compiled backward computes gradients of weights that nobody asks for.
        with graph.in_mode(module, mode):
            return module(*inputs)

    def _place(self, num_images: int) -> slice:
        own = self._ranks.rows(num_images)
        return slice(self._views * own.start, self._views * own.stop)

    def _gather(self, num_images: int, rows: Tensor) -> Tensor:
        return self._ranks.gather(rows, num_images, self._views)

    def _part_of(self, losses: Losses, num_images: int) -> Losses:
        """Scale losses over this process's rows to their part of those over the batch."""
        ranks = self._ranks
        if not ranks.are_several:
            return losses
        share = ranks.share(num_images)
        shares: dict[str, float | Tensor] = {
            name: share if loss.over == "images" else 1 / ranks.num_processes
            for name, loss in losses.items()
            if isinstance(loss.over, str)
        }
        counts = {n: loss.over for n, loss in losses.items() if isinstance(loss.over, Tensor)}
        if counts:
            # Of borrowed rows nothing counts.
            own = torch.stack(list(counts.values())).float() * (share > 0)
            total = own.clone()
            ranks.sum([total])
            shares |= dict(zip(counts, own / total.clamp_min(1), strict=True))
        return {n: replace(loss, value=loss.value * shares[n]) for n, loss in losses.items()}

    def _differentiate(self, losses: Losses) -> None:
        for parameter in self.parameters.values():
            parameter.grad = None
        final: Mapping[str, Tensor] = {}
        scale = 1.0
        if self._rule is not None:
            # Only in float16 is there a scale, and only then does this wait for the device.
            scale = self.scaler.get_scale() if self.scaler.is_enabled() else 1.0
            final = self._rule(_Gradients(losses, self, scale))
        self.scaler.scale(_total(losses.values())).backward()
        # One exchange for all: networks grow and parts freeze, so no bucket would last.
        gradients = [parameter.grad for parameter in self.parameters.values()]
        self._ranks.sum([gradient for gradient in gradients if gradient is not None])
        for name, gradient in final.items():
            self.parameters[name].grad = gradient * scale

    def gradients_of(self, total: Tensor, names: Collection[str]) -> dict[str, Tensor]:
        """Differentiate a scalar by some parameters; the sum over all processes."""
        parameters = [self.parameters[name] for name in names]
        found = torch.autograd.grad(
            self.scaler.scale(total),
            parameters,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        summed = [gradient.contiguous() for gradient in found]
        self._ranks.sum(summed)
        return dict(zip(names, summed, strict=True))


@final
class _Gradients:
    """The gradients of single losses of one batch, as a rule asks for them."""

    def __init__(self, losses: Losses, passes: Passes, scale: float) -> None:
        self.state: Mapping[str, Tensor] = passes.state
        self._losses = losses
        self._passes = passes
        self._scale = scale

    def of(self, losses: Collection[str], parameters: Collection[str]) -> dict[str, Tensor]:
        total = _total([self._losses[name] for name in losses])
        found = self._passes.gradients_of(total, parameters)
        return {name: gradient / self._scale for name, gradient in found.items()}


def _total(losses: Collection[Loss]) -> Tensor:
    return torch.stack([loss.weight * loss.value for loss in losses]).sum()
