"""One phase while it is trained: its optimiser steps and its snapshots."""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar, final

import torch
from torch import Tensor, nn

from grace.data.images import LabelledImages
from grace.engine import parts as graph
from grace.engine.checkpoint import Snapshot
from grace.engine.device import Device
from grace.engine.forward_backward import BatchRows, ForwardBackward
from grace.engine.loss_meter import LossMeter, NonFiniteLossError
from grace.engine.optimisers import (
    build_optimiser,
    is_moment,
    moments_fit,
    named_moments,
    restore_moments,
    set_rate,
)
from grace.engine.parts import Forward
from grace.engine.phase import GradientSweep, Phase
from grace.engine.ranks import Ranks
from grace.engine.weight_average import WeightAverage
from grace.engine.work import WorkDone

Value = TypeVar("Value")
PHASE_STATE = "state/"
"""Prefix of a phase's own tensors in a snapshot."""


@final
class PhaseRun:
    """Trains one phase, epoch by epoch; ``done`` notes what the steps cost.

    Args:
        phase: to train.
        data: its images, on the device.
        modules: see ``ForwardBackward``, as for all others.
        device: device and precision.
        forward: see ``parts.run``.
        ranks: the processes that share the work.
    """

    def __init__(
        self,
        phase: Phase,
        data: LabelledImages,
        modules: Mapping[str, nn.Module],
        device: Device,
        forward: Forward | None,
        ranks: Ranks,
    ) -> None:
        self.phase = phase
        self.data = data
        self.done = WorkDone(phase.name, phase.recipe.epochs, len(phase.data))
        self._device = device
        self._ranks = ranks
        self._passes = ForwardBackward(phase, modules, device, forward, self.done.seconds, ranks)
        self._parameters = self._passes.parameters
        self._optimiser = build_optimiser(phase.recipe, phase.parts)
        self._average = WeightAverage(phase.recipe, self._state())

    def use(self, modules: Mapping[str, nn.Module]) -> None:
        """Use other copies of the parts that do not change in this phase."""
        self._passes.modules = modules

    def snapshot(self, epochs: int, started: float) -> Snapshot:
        """Collect everything that the remaining epochs depend on; write it before the next step.

        Args:
            epochs: epochs done.
            started: performance counter at the start of the phase.
        """
        tensors = self._kept(epochs)
        if epochs < self.phase.recipe.epochs:
            tensors |= dict(named_moments(self._optimiser, self._parameters))
        return Snapshot(
            epochs=epochs,
            tensors={name: tensor.detach().cpu() for name, tensor in tensors.items()},
            losses=self.done.losses,
            seconds=time.perf_counter() - started,
            scaler=self._passes.scaler.state_dict(),
        )

    def fits(self, saved: Snapshot) -> bool:
        """Return True if a snapshot is of this phase; any other is ignored."""
        own = {name: tensor.shape for name, tensor in self._kept(saved.epochs).items()}
        found = {name: t.shape for name, t in saved.tensors.items() if not is_moment(name)}
        is_over = saved.epochs == self.phase.recipe.epochs
        return own == found and (
            is_over or moments_fit(self.phase.recipe, self._parameters, saved.tensors)
        )

    def restore(self, saved: Snapshot) -> None:
        """Go back to the state of a snapshot."""
        with torch.no_grad():
            for name, tensor in self._kept(saved.epochs).items():
                tensor.copy_(saved.tensors[name])
            restore_moments(self._optimiser, self._parameters, saved.tensors)
        if saved.scaler:
            self._passes.scaler.load_state_dict(dict(saved.scaler))
        self.done.losses = saved.losses
        self.done.seconds.earlier, self.done.is_shared = saved.seconds, saved.is_shared

    def note_weights(self) -> None:
        """Note the hash of what the phase trained, so that others can compare what they took."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self._kept(self.phase.recipe.epochs).items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().tobytes())
        self.done.sha256 = digest.hexdigest()

    def equalise(self) -> None:
        """Copy the first process's weights and buffers, so that processes cannot drift apart."""
        self._ranks.broadcast(list(self._state().values()))

    def epoch(
        self, epoch: int, lr: float, batches: Iterator[BatchRows], draws: torch.Generator
    ) -> None:
        """Train for one epoch, and note the mean of every loss over it.

        Args:
            epoch: from 0.
            lr: learning rate of the epoch.
            batches: this process's rows of each.
            draws: for the random numbers of the objective.
        """
        set_rate(self._optimiser, lr)
        scaler, clip = self._passes.scaler, self.phase.recipe.clip_norm
        meter = LossMeter(self._device.torch_device, self._ranks)
        for losses, num_images in self._passes.run(batches, epoch, draws):
            if clip is not None:
                scaler.unscale_(self._optimiser)
                nn.utils.clip_grad_norm_(self._parameters.values(), clip)
            scaler.step(self._optimiser)
            scaler.update()
            if self.phase.after_step is not None:
                with torch.no_grad():
                    self.phase.after_step()
            meter.add(losses, num_images)
        average_buffers(self.phase, self._ranks)
        self._average.epoch_finished(epoch, self._state())
        self.done.losses = meter.means(
            f"phase '{self.phase.name}', epoch {epoch + 1}", self.phase.name
        )

    def refuse_bad_weights(self) -> None:
        """Refuse weights that the last step made infinite; its loss was computed before it.

        Raises:
            NonFiniteLossError: naming the phase.
        """
        tensors = self._state().values()
        if not bool(torch.stack([tensor.isfinite().all() for tensor in tensors]).all()):
            raise NonFiniteLossError(
                f"weights are not finite after phase '{self.phase.name}', epoch "
                f"{self.phase.recipe.epochs}",
                self.phase.name,
            )

    def _state(self) -> dict[str, Tensor]:
        return graph.named_state(self.phase.parts)

    def _kept(self, epochs: int) -> dict[str, Tensor]:
        """Name all tensors that the phase has changed after some epochs, but the moments."""
        state = {f"{PHASE_STATE}{name}": value for name, value in self.phase.state.items()}
        return {**self._state(), **state, **self._average.saved_after(epochs)}


def snapshot(runs: Sequence[PhaseRun], epochs: int, started: float) -> Snapshot:
    """Take one snapshot of phases that take turns; see ``PhaseRun.snapshot``.

    Args:
        runs: the phases.
        epochs: epochs done by each.
        started: performance counter at their start.
    """
    taken = [run.snapshot(epochs, started) for run in runs]
    if len(taken) == 1:
        return taken[0]
    named = [(run.phase.name, of) for run, of in zip(runs, taken, strict=True)]
    return replace(
        taken[0],
        tensors={f"{name}/{key}": t for name, of in named for key, t in of.tensors.items()},
        losses={f"{name}/{key}": v for name, of in named for key, v in of.losses.items()},
        scaler={f"{name}/{key}": v for name, of in named for key, v in of.scaler.items()},
    )


def restored(runs: Sequence[PhaseRun], saved: Snapshot) -> int:
    """Set phases to the state of a snapshot; return its epochs, or 0 if it does not fit."""
    own = [saved]
    if len(runs) > 1:
        own = [
            replace(
                saved,
                tensors=_below(run.phase.name, saved.tensors),
                losses=_below(run.phase.name, saved.losses),
                scaler=_below(run.phase.name, saved.scaler),
            )
            for run in runs
        ]
    if not all(run.fits(part) for run, part in zip(runs, own, strict=True)):
        return 0
    for run, part in zip(runs, own, strict=True):
        run.restore(part)
    return saved.epochs


def _below(name: str, values: Mapping[str, Value]) -> dict[str, Value]:
    start = f"{name}/"
    return {k.removeprefix(start): value for k, value in values.items() if k.startswith(start)}


def average_buffers(work: Phase | GradientSweep, ranks: Ranks) -> None:
    """Average running statistics over all processes: each has seen its own rows only."""
    buffers = graph.named_buffers(work.parts).values()
    ranks.average([buffer for buffer in buffers if buffer.is_floating_point()])
