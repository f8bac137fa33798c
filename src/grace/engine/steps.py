"""Batches become gradients, and gradients steps; the trainer loops over both."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from grace.engine.checkpoint import Snapshot
from grace.engine.device import Device
from grace.engine.phase import Batch, GradientSweep, Loss, Phase, named_parameters, named_state
from grace.engine.ranks import Ranks
from grace.engine.tally import NonFiniteLossError, Tally
from grace.engine.work import Seconds, WorkDone

Forward = Callable[[nn.Module, Tensor], Tensor]
"""Runs a module on images."""


@final
class Passes:
    """Forward and backward passes over batches: all that a phase and a gradient sweep share.

    Several processes do each its rows of a batch; losses are scaled by the share of the batch that
    they are means over, so that they, and then the gradients, add up to the global batch's.
    """

    def __init__(
        self,
        work: Phase | GradientSweep,
        frozen: Sequence[nn.Module],
        trunk: nn.Module | None,
        device: Device,
        forward: Forward,
        seconds: Seconds,
        ranks: Ranks,
    ) -> None:
        self.parameters = named_parameters(work.trained, work.heads)
        self.scaler = torch.amp.GradScaler(
            device.torch_device.type, enabled=device.precision == torch.float16
        )
        self._work = work
        self._frozen = frozen
        self._trunk = trunk
        self._trains_trunk = any(module is trunk for module in work.trained)
        self._device = device
        self._forward = forward
        self._seconds = seconds
        self._ranks = ranks

    def over(
        self, batches: Iterator[tuple[Tensor, Tensor, int]], epoch: int, draws: torch.Generator
    ) -> Iterator[tuple[Mapping[str, Loss], int]]:
        """Yield this process's part of each batch's losses, with the batch's gradients in place.

        Args:
            batches: images and labels of this process's rows, and the size of the global batch.
            epoch: of the phase, from 0.
            draws: for whatever the objective draws.

        Yields:
            Losses, and the size of the global batch.
        """
        clock = time.perf_counter
        before = clock()
        for images, labels, num_images in batches:
            ready = clock()
            with self._device.autocast():
                with torch.set_grad_enabled(self._trains_trunk):
                    inputs = self._forward(self._trunk, images) if self._trunk else images
                    frozen = [self._forward(module, inputs) for module in self._frozen]
                frozen_done = clock()
                learned = [self._forward(module, inputs) for module in self._work.backbones]
                losses = self._work.objective(Batch(images, labels, frozen, learned, epoch, draws))
                losses = self._part_of(losses, num_images)
            self._differentiate(losses)
            yield losses, num_images
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

    def _part_of(self, losses: Mapping[str, Loss], num_images: int) -> Mapping[str, Loss]:
        """Scale losses over this process's rows to their part of those over the batch."""
        ranks = self._ranks
        if not ranks.are_several:
            return losses
        share = ranks.share(num_images)
        scaled = {name: replace(loss, value=loss.value * share) for name, loss in losses.items()}
        counts = {n: loss.num_images for n, loss in losses.items() if loss.num_images is not None}
        if counts:
            # Of borrowed rows nothing counts.
            own = torch.stack(list(counts.values())).float() * (share > 0)
            total = own.clone()
            ranks.sum([total])
            for name, part in zip(counts, own / total.clamp_min(1), strict=True):
                scaled[name] = replace(losses[name], value=losses[name].value * part)
        return scaled

    def _differentiate(self, losses: Mapping[str, Loss]) -> None:
        total = torch.stack([loss.weight * loss.value for loss in losses.values()]).sum()
        for parameter in self.parameters.values():
            parameter.grad = None
        self.scaler.scale(total).backward()
        # One exchange for all: networks grow and parts freeze, so no bucket would last.
        gradients = [parameter.grad for parameter in self.parameters.values()]
        self._ranks.sum([gradient for gradient in gradients if gradient is not None])


@final
class Steps:
    """The optimiser steps of one phase."""

    def __init__(
        self,
        phase: Phase,
        frozen: Sequence[nn.Module],
        trunk: nn.Module | None,
        device: Device,
        forward: Forward,
        seconds: Seconds,
        ranks: Ranks,
    ) -> None:
        self._phase = phase
        self._device = device
        self._ranks = ranks
        self._passes = Passes(phase, frozen, trunk, device, forward, seconds, ranks)
        self._parameters = list(self._passes.parameters.values())
        self._optimiser = torch.optim.SGD(
            self._parameters,
            lr=phase.recipe.lr,
            momentum=phase.recipe.momentum,
            weight_decay=phase.recipe.weight_decay,
            fused=True,
        )

    def snapshot(self, epochs: int, done: WorkDone, started: float) -> Snapshot:
        """Gather what the phase's further epochs depend on, to be written before the next step.

        ``started`` is the performance counter at the phase's start.
        """
        tensors = dict(self._state())
        if epochs < self._phase.recipe.epochs:
            tensors |= {f"momentum.{i}": momentum for i, momentum in self._momenta()}
        return Snapshot(
            epochs=epochs,
            tensors={name: tensor.detach().cpu() for name, tensor in tensors.items()},
            losses=done.losses,
            seconds=time.perf_counter() - started,
            scaler=self._passes.scaler.state_dict(),
        )

    def fits(self, saved: Snapshot) -> bool:
        """Whether a snapshot is of such a phase; one that is not counts as absent."""
        wanted = {name: tensor.shape for name, tensor in self._state()}
        if saved.epochs < self._phase.recipe.epochs and self._phase.recipe.momentum:
            shapes = enumerate(parameter.shape for parameter in self._parameters)
            wanted |= {f"momentum.{i}": shape for i, shape in shapes}
        return wanted == {name: tensor.shape for name, tensor in saved.tensors.items()}

    def restore(self, saved: Snapshot) -> None:
        """Put everything back as it was when the snapshot was taken."""
        with torch.no_grad():
            for name, tensor in self._state():
                tensor.copy_(saved.tensors[name])
            for i, parameter in enumerate(self._parameters):
                momentum = saved.tensors.get(f"momentum.{i}")
                if momentum is not None:
                    # copy_ keeps the layout of the parameter, whatever the file's was.
                    buffer = torch.empty_like(parameter).copy_(momentum)
                    self._optimiser.state[parameter]["momentum_buffer"] = buffer
        if saved.scaler:
            self._passes.scaler.load_state_dict(dict(saved.scaler))

    def equalise(self) -> None:
        """Take over the first process's weights and buffers, so that none can ever drift."""
        self._ranks.broadcast([tensor for _, tensor in self._state()])

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        return named_state(self._phase.trained, self._phase.heads)

    def _momenta(self) -> Iterator[tuple[int, Tensor]]:
        for i, parameter in enumerate(self._parameters):
            momentum = self._optimiser.state[parameter].get("momentum_buffer")
            if momentum is not None:
                yield i, momentum

    def epoch(
        self,
        epoch: int,
        lr: float,
        batches: Iterator[tuple[Tensor, Tensor, int]],
        draws: torch.Generator,
    ) -> dict[str, float]:
        """Take one epoch's steps; return the mean of every named loss over its images."""
        for group in self._optimiser.param_groups:
            group["lr"] = lr
        tally = Tally(self._device.torch_device, self._ranks)
        for losses, num_images in self._passes.over(batches, epoch, draws):
            self._passes.scaler.step(self._optimiser)
            self._passes.scaler.update()
            tally.add(losses, num_images)
        average_buffers(self._phase, self._ranks)
        return tally.means(f"phase '{self._phase.name}', epoch {epoch + 1}")


@contextmanager
def only_training(work: Phase | GradientSweep) -> Iterator[None]:
    """Put what trains into train mode with gradients, and back into eval mode without after.

    The gradients themselves go too: they would double what a backbone holds ever after.
    """
    modules = [*work.trained, *work.heads]
    try:
        for module in modules:
            module.train().requires_grad_(True)
        yield
    finally:
        for module in modules:
            module.eval().requires_grad_(False)
            module.zero_grad(set_to_none=True)


def average_buffers(work: Phase | GradientSweep, ranks: Ranks) -> None:
    """Make running statistics the same in all processes: each saw its rows of the batches."""
    modules = [*work.trained, *work.heads]
    buffers = [buffer for module in modules for buffer in module.buffers()]
    ranks.average([buffer for buffer in buffers if buffer.is_floating_point()])


def refuse_bad_weights(phase: Phase) -> None:
    """Find what the last step broke: its loss was computed before it."""
    modules = [*phase.trained, *phase.heads]
    tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    if not bool(torch.stack([tensor.isfinite().all() for tensor in tensors]).all()):
        raise NonFiniteLossError(
            f"weights are not finite after phase '{phase.name}', epoch {phase.recipe.epochs}: "
            "lower the learning rate of this phase's recipe"
        )
