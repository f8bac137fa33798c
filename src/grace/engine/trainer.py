"""The trainer: carries out phases and sweeps. The only epoch loop of the package."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, final

import torch
from torch import Tensor, nn

from grace.configs.experiment import EngineSettings
from grace.data.augmentation import Augmentation
from grace.data.batches import augmented_batches, epoch_batches, ordered_batches
from grace.data.images import LabelledImages
from grace.engine.checkpoint import Keeper, Snapshot
from grace.engine.device import Device
from grace.engine.phase import Batch, Loss, Phase, PhaseResult, Sweep
from grace.engine.progress import Progress, Silence
from grace.engine.schedule import learning_rates
from grace.engine.work import Seconds, WorkDone
from grace.networks.folding import folded
from grace.randomness import generator, seeded_globally


class NonFiniteLossError(ValueError):
    """A loss became infinite or not a number; the learner keeps its state from before the task."""


def _forward(module: nn.Module, images: Tensor) -> Tensor:
    outputs: Tensor = module(images)
    return outputs


Forward = Callable[[nn.Module, Tensor], Tensor]


@final
class Trainer:
    """Carries out phases and sweeps on one device.

    Args:
        settings: device, precision, layout, compilation.
        augmentation: training augmentation and test transform of the data.
        data_seed: seed of image order and augmentation.
        progress: told about every phase, epoch and sweep.
    """

    def __init__(
        self,
        settings: EngineSettings,
        augmentation: Augmentation,
        data_seed: int,
        progress: Progress | None = None,
    ) -> None:
        self.device = Device.from_settings(settings)
        self.progress: Progress = progress or Silence()
        self.work: list[WorkDone] = []
        self._settings = settings
        self._augmentation = augmentation.to(self.device.torch_device)
        self._data_seed = data_seed
        self._task = 0
        self._folded: dict[int, tuple[nn.Module, nn.Module]] = {}

    def start_task(self, number: int) -> None:
        """Name the task that the next phases belong to: it seeds their draws."""
        self._task = number
        self.work = []
        self._folded = {}

    def run(self, item: Phase | Sweep, keeper: Keeper | None = None) -> Any:  # noqa: ANN401 - a sweep's value is its reducer's
        """Carry out and note what a method yielded; return its result or value.

        A keeper makes a phase go on from its last snapshot.
        """
        if isinstance(item, Phase):
            return self.optimise(item, keeper)
        started = time.perf_counter()
        result = self.sweep(item)
        done = WorkDone(item.name, 0, len(item.data))
        done.seconds.total = time.perf_counter() - started
        self.work.append(done)
        return result

    def sweep(self, sweep: Sweep) -> Any:  # noqa: ANN401
        """Pass over data once, in eval mode and order; return the reducer's value."""
        self.progress.sweep_started(sweep.name, len(sweep.data))
        backbones = [self._frozen(module) for module in sweep.backbones]
        # In float32 whatever the precision of training: rounding to bfloat16 would raise the
        # effective rank and let distances to class means tie.
        with torch.no_grad():
            for images, labels in self._sweep_batches(sweep):
                features = torch.cat([backbone(images) for backbone in backbones], dim=1)
                sweep.reducer.update(features, labels)
        return sweep.reducer.result()

    def _frozen(self, module: nn.Module) -> nn.Module:
        """Fold a module once for as long as nothing trains."""
        # The entry keeps the module alive, so that no other can take its id.
        entry = self._folded.get(id(module))
        if entry is None:
            entry = (module, self.device.place(folded(module)))
            self._folded[id(module)] = entry
        return entry[1]

    def _sweep_batches(self, sweep: Sweep) -> Iterator[tuple[Tensor, Tensor]]:
        data, size = self._on_device(sweep.data), self._settings.eval_batch_size
        layout, device = self.device.channels_last, self.device.torch_device
        if not sweep.augmented:
            transform = partial(self._augmentation.normalise, channels_last=layout)
            return ordered_batches(data, size, transform, device=device)
        draws = generator(self._data_seed, "sweep", self._task, sweep.name)
        return augmented_batches(
            data, size, self._augmentation, draws, device=device, channels_last=layout
        )

    def optimise(self, phase: Phase, keeper: Keeper | None = None) -> PhaseResult:
        """Train a phase's modules for all epochs of its recipe; note the work.

        Args:
            phase: what trains, on what.
            keeper: where its snapshots are found and left; the epochs of one that is found are
                not done again.

        Raises:
            NonFiniteLossError: naming phase, epoch, batch and loss, at the end of that epoch.
        """
        assert len(phase.data) > 0, f"phase {phase.name} has no data"
        recipe = phase.recipe
        self.progress.phase_started(phase.name, recipe.epochs, len(phase.data))
        saved = keeper.saved() if keeper else None
        started = time.perf_counter() - (saved.seconds if saved else 0.0)
        done = WorkDone(phase.name, recipe.epochs, len(phase.data))
        with _only_training(phase):
            frozen = [self._frozen(module) for module in phase.frozen]
            # What was folded of anything else may train now.
            self._folded = {id(m): (m, f) for m, f in zip(phase.frozen, frozen, strict=True)}
            forward = self._forward_for(phase)
            steps = _Steps(phase, frozen, self.device, forward, done.seconds)
            data = self._on_device(phase.data)
            first = 0
            if saved and steps.fits(saved):
                steps.restore(saved)
                first, done.losses = saved.epochs, saved.losses
            for epoch, lr in list(enumerate(learning_rates(recipe)))[first:]:
                seeds = (self._data_seed, self._task, phase.name, epoch)
                batches = epoch_batches(
                    data,
                    recipe.batch_size,
                    _purpose("order", *seeds),
                    self._augmentation,
                    _purpose("augment", *seeds),
                    device=self.device.torch_device,
                    channels_last=self.device.channels_last,
                )
                # Dropout draws from torch's global generator.
                with seeded_globally(self._data_seed, "dropout", self._task, phase.name, epoch):
                    done.losses = steps.epoch(epoch, lr, batches, _purpose("objective", *seeds))
                self.progress.epoch_finished(phase.name, epoch + 1, recipe.epochs, done.losses, lr)
                if keeper and epoch + 1 < recipe.epochs:
                    keeper.offer(partial(steps.snapshot, epoch + 1, done, started), is_last=False)
            _refuse_bad_weights(phase)
            if keeper and first < recipe.epochs:
                keeper.offer(partial(steps.snapshot, recipe.epochs, done, started), is_last=True)
        if self.device.torch_device.type == "cuda":
            torch.cuda.synchronize()
        done.seconds.total = time.perf_counter() - started
        self.work.append(done)
        self.progress.phase_finished(phase.name, done.seconds.total)
        return PhaseResult(done.losses)

    def _on_device(self, data: LabelledImages) -> LabelledImages:
        return data.to(self.device.torch_device)

    def _forward_for(self, phase: Phase) -> Forward:
        compiles = self.device.compiles(phase.recipe, len(phase.data), phase.data.images.shape)
        if not compiles:
            return _forward
        batch_size = phase.recipe.batch_size
        compiled = _compiled_forward()

        def compiled_for_full_batches(module: nn.Module, images: Tensor) -> Tensor:
            # The last, smaller batch would cost a compilation of its own.
            run = compiled if len(images) == batch_size else _forward
            return run(module, images)

        return compiled_for_full_batches


@cache
def _compiled_forward() -> Forward:
    """Compile the forward pass, once for all trainers.

    One compiled function serves every module of a class: torch keeps one program for each
    architecture, batch size and mode, with the weights as inputs. It gives up silently at eight
    programs by default, which several backbones or learners in one process would exceed.
    """
    dynamo = torch._dynamo.config
    dynamo.recompile_limit = max(dynamo.recompile_limit, 64)
    return torch.compile(_forward, dynamic=False)


def _refuse_bad_weights(phase: Phase) -> None:
    """Find what the last step broke: its loss was computed before it."""
    modules = [*phase.backbones, *phase.heads]
    tensors = [t for module in modules for t in (*module.parameters(), *module.buffers())]
    if not bool(torch.stack([tensor.isfinite().all() for tensor in tensors]).all()):
        raise NonFiniteLossError(
            f"weights are not finite after phase '{phase.name}', epoch {phase.recipe.epochs}: "
            "lower the learning rate of this phase's recipe"
        )


def _purpose(purpose: str, seed: int, task: int, phase: str, epoch: int) -> torch.Generator:
    return generator(seed, purpose, task, phase, epoch)


@contextmanager
def _only_training(phase: Phase) -> Iterator[None]:
    """Put what trains into train mode with gradients, and back into eval mode without after.

    The gradients themselves go too: they would double what a backbone holds ever after.
    """
    modules = [*phase.backbones, *phase.heads]
    try:
        for module in modules:
            module.train().requires_grad_(True)
        yield
    finally:
        for module in modules:
            module.eval().requires_grad_(False)
            module.zero_grad(set_to_none=True)


@final
class _Steps:
    """The optimiser steps of one phase."""

    def __init__(
        self,
        phase: Phase,
        frozen: Sequence[nn.Module],
        device: Device,
        forward: Forward,
        seconds: Seconds,
    ) -> None:
        self._phase = phase
        self._device = device
        self._forward = forward
        self._seconds = seconds
        self._frozen = frozen
        self._parameters = [
            parameter
            for module in [*phase.backbones, *phase.heads]
            for parameter in module.parameters()
        ]
        self._optimiser = torch.optim.SGD(
            self._parameters,
            lr=phase.recipe.lr,
            momentum=phase.recipe.momentum,
            weight_decay=phase.recipe.weight_decay,
            fused=True,
        )
        self._scaler = torch.amp.GradScaler(
            device.torch_device.type, enabled=device.precision == torch.float16
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
            scaler=self._scaler.state_dict(),
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
            self._scaler.load_state_dict(dict(saved.scaler))

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        for kind, modules in (("backbone", self._phase.backbones), ("head", self._phase.heads)):
            for i, module in enumerate(modules):
                for name, tensor in module.state_dict().items():
                    yield f"{kind}.{i}.{name}", tensor

    def _momenta(self) -> Iterator[tuple[int, Tensor]]:
        for i, parameter in enumerate(self._parameters):
            momentum = self._optimiser.state[parameter].get("momentum_buffer")
            if momentum is not None:
                yield i, momentum

    def epoch(
        self,
        epoch: int,
        lr: float,
        batches: Iterator[tuple[Tensor, Tensor]],
        draws: torch.Generator,
    ) -> dict[str, float]:
        """Take one epoch's steps; return the mean of every named loss over its images."""
        for group in self._optimiser.param_groups:
            group["lr"] = lr
        tally = _Tally(self._device.torch_device)
        clock = time.perf_counter
        before = clock()
        for images, labels in batches:
            ready = clock()
            with self._device.autocast():
                with torch.no_grad():
                    frozen = [self._forward(module, images) for module in self._frozen]
                frozen_done = clock()
                learned = [self._forward(module, images) for module in self._phase.backbones]
                losses = self._phase.objective(Batch(images, labels, frozen, learned, epoch, draws))
            self._step(losses)
            tally.add(losses, len(labels))
            stepped = clock()
            self._seconds.data += ready - before
            self._seconds.frozen += frozen_done - ready
            self._seconds.training += stepped - frozen_done
            before = stepped
        return tally.means(self._phase.name, epoch)

    def _step(self, losses: Mapping[str, Loss]) -> None:
        total = torch.stack([loss.weight * loss.value for loss in losses.values()]).sum()
        self._optimiser.zero_grad(set_to_none=True)
        self._scaler.scale(total).backward()
        self._scaler.step(self._optimiser)
        self._scaler.update()


@final
class _Tally:
    """Sums of named losses, kept on the device: nothing waits for it within an epoch."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sums: dict[str, Tensor] = {}
        self._first_bad: dict[str, Tensor] = {}
        self._num_batches = 0
        self._num_images = 0

    def add(self, losses: Mapping[str, Loss], num_images: int) -> None:
        """Take one batch's losses, each a mean over ``num_images``."""
        self._num_batches += 1
        self._num_images += num_images
        for name, loss in losses.items():
            value = loss.value.detach().double()
            if name not in self._sums:
                self._sums[name] = torch.zeros((), dtype=torch.float64, device=self._device)
                self._first_bad[name] = torch.full_like(self._sums[name], math.inf)
            self._sums[name] += value * num_images
            bad = torch.where(torch.isfinite(value), math.inf, float(self._num_batches))
            self._first_bad[name] = torch.minimum(self._first_bad[name], bad)

    def means(self, phase: str, epoch: int) -> dict[str, float]:
        """Return the means per image, or raise for the first batch with a bad loss."""
        first_bad = {name: float(batch) for name, batch in self._first_bad.items()}
        name = min(first_bad, key=first_bad.__getitem__)
        if first_bad[name] < math.inf:
            raise NonFiniteLossError(
                f"loss '{name}' is not finite in phase '{phase}', epoch {epoch + 1}, batch "
                f"{int(first_bad[name])}: lower the learning rate of this phase's recipe"
            )
        return {name: float(value) / self._num_images for name, value in self._sums.items()}
