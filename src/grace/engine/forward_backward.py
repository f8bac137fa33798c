"""Forward and backward passes over the batches of a phase or gradient sweep.

Shapes: B rows in a batch.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
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
    """The rows of a batch that one process computes.

    Args:
        images: rows (B, C, H, W).
        labels: their class indices (B,).
        num_images: images of the whole batch, on all processes.
        known: the phase's own rows (B, …) by name.
    """

    images: Tensor
    labels: Tensor
    num_images: int
    known: Mapping[str, Tensor] = field(default_factory=dict)


@final
class ForwardBackward:
    """Runs the parts on every batch and stores the gradients in the parameters.

    With several processes, each computes its rows of a batch. Its losses are scaled by its share of
    the batch, so that the sums of losses and gradients over all processes are those of the batch.

    Args:
        work: the phase or gradient sweep.
        modules: the module to run for every part: the part's own, or a folded copy.
        device: device and precision.
        forward: see ``parts.run``.
        seconds: the time is added to it.
        ranks: the processes that share the work.
    """

    def __init__(
        self,
        work: Phase | GradientSweep,
        modules: Mapping[str, nn.Module],
        device: Device,
        forward: Forward | None,
        seconds: Seconds,
        ranks: Ranks,
    ) -> None:
        self.parameters = graph.named_parameters(work.parts)
        self.scaler = torch.amp.GradScaler(
            device.torch_device.type, enabled=device.precision == torch.float16
        )
        self._work = work
        self.modules = modules
        off = graph.without_autograd(work.parts, work.rows if isinstance(work, Phase) else ())
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

    def run(
        self, batches: Iterator[BatchRows], epoch: int, draws: torch.Generator
    ) -> Iterator[tuple[Losses, int]]:
        """Compute losses and gradients batch by batch; the caller takes the step.

        When a batch is yielded, its gradients are stored in the parameters.

        Args:
            batches: this process's rows of each.
            epoch: of the phase, from 0.
            draws: for the random numbers of the objective.

        Yields:
            This process's part of the losses (scalars), and the images of the whole batch.
        """
        clock = time.perf_counter
        before = clock()
        for step, rows in enumerate(batches):
            ready = clock()
            with self._device.autocast():
                with torch.no_grad():
                    outputs = graph.run(
                        self._before, self.modules, rows.images, self._forward, dict(rows.known)
                    )
                frozen_done = clock()
                outputs = graph.run(self._after, self.modules, rows.images, self._forward, outputs)
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
                    call=self._run_part,
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
        """Return the present batch's gradients by parameter and in its shape; 0 without any."""
        return {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in self.parameters.items()
        }

    def _run_part(self, name: str, *inputs: Any, mode: Mode | None) -> Any:  # noqa: ANN401
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
        """Scale the losses of this process's rows to their part of the batch's."""
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
            # Borrowed rows do not count.
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
        # One exchange for all gradients: buckets would not last, as networks grow and parts freeze.
        gradients = [parameter.grad for parameter in self.parameters.values()]
        self._ranks.sum([gradient for gradient in gradients if gradient is not None])
        for name, gradient in final.items():
            self.parameters[name].grad = gradient * scale

    def gradients_of(self, total: Tensor, names: Collection[str]) -> dict[str, Tensor]:
        """Differentiate a scalar by some parameters, summed over all processes.

        Args:
            total: scalar.
            names: of the parameters; each gradient has its parameter's shape.
        """
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
    """The ``LossGradients`` of one batch."""

    def __init__(self, losses: Losses, passes: ForwardBackward, scale: float) -> None:
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
