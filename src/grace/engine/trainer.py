"""The trainer: carries out phases and sweeps. The only epoch loop of the package."""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, partial
from typing import Any, final

import torch
from torch import Tensor, nn

from grace.configs.experiment import EngineSettings
from grace.data.augmentation import Augmentation
from grace.data.batches import augmented_batches, epoch_batches, ordered_batches
from grace.data.images import LabelledImages
from grace.engine.checkpoint import Keeper
from grace.engine.device import Device
from grace.engine.phase import GradientSweep, Loss, Phase, PhaseResult, Sweep, Work
from grace.engine.progress import Progress, Silence
from grace.engine.schedule import learning_rates
from grace.engine.steps import Forward, Passes, Steps, only_training, refuse_bad_weights
from grace.engine.tally import NonFiniteLossError as NonFiniteLossError
from grace.engine.tally import Tally
from grace.engine.work import Seconds, WorkDone
from grace.networks.folding import folded
from grace.randomness import generator, seeded_globally


def _forward(module: nn.Module, images: Tensor) -> Tensor:
    outputs: Tensor = module(images)
    return outputs


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

    def run(self, item: Work, keeper: Keeper | None = None) -> Any:  # noqa: ANN401 - a sweep's value is its reducer's
        """Carry out and note what a method yielded; return its result or value.

        A keeper makes a phase go on from its last snapshot.
        """
        if isinstance(item, Phase):
            return self.optimise(item, keeper)
        started = time.perf_counter()
        done = WorkDone(item.name, 0, len(item.data))
        if isinstance(item, Sweep):
            result = self.sweep(item)
        else:
            result = self.differentiate(item, done.seconds)
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

    def differentiate(self, sweep: GradientSweep, seconds: Seconds) -> Any:  # noqa: ANN401
        """Pass over data once in train mode without stepping; return the reducer's value.

        In float32 whatever the precision of training: squares of gradients leave float16's range.

        Raises:
            NonFiniteLossError: naming the first batch whose loss or gradient is not finite.
        """
        assert len(sweep.data) > 0, f"sweep {sweep.name} has no data"
        self.progress.sweep_started(sweep.name, len(sweep.data))
        self._folded = {}  # What was folded is about to move.
        device = replace(self.device, precision=torch.float32)
        tally = Tally(device.torch_device)
        batches = self._epoch_batches(sweep.name, 0, self._on_device(sweep.data), sweep.batch_size)
        with only_training(sweep), self._dropout(sweep.name, 0):
            passes = Passes(sweep, [], None, device, _forward, seconds)
            draws = self._draws("objective", sweep.name, 0)
            for losses, num_images in passes.over(batches, 0, draws):
                gradients = passes.gradients()
                sweep.reducer.update(gradients)
                norm = torch.nn.utils.get_total_norm(gradients.values())
                tally.add({**losses, "gradient": Loss(norm)}, num_images)
        tally.means(f"sweep '{sweep.name}'", "the phase before it")
        return sweep.reducer.result()

    def restore_buffers(self, sweep: GradientSweep, buffers: Mapping[str, Tensor]) -> None:
        """Leave the modules as a finished gradient sweep left them, instead of doing it again.

        Raises:
            ValueError: if these are not its buffers; the modules are then as they were.
        """
        own = sweep.buffers()
        forms = [{n: (t.shape, t.dtype) for n, t in of.items()} for of in (own, buffers)]
        if forms[0] != forms[1]:
            raise ValueError(f"sweep '{sweep.name}' moves other buffers")
        self._folded = {}
        for name, buffer in own.items():
            buffer.copy_(buffers[name])

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
        with only_training(phase):
            # What was folded of anything else may train now.
            self._folded = {id(m): (m, self._frozen(m)) for m in phase.untrained}
            frozen = [self._frozen(module) for module in phase.frozen]
            trunk = phase.trunk
            if trunk is not None and not phase.trains_trunk:
                trunk = self._frozen(trunk)
            forward = self._forward_for(phase)
            steps = Steps(phase, frozen, trunk, self.device, forward, done.seconds)
            data = self._on_device(phase.data)
            first = 0
            if saved and steps.fits(saved):
                steps.restore(saved)
                first, done.losses = saved.epochs, saved.losses
                done.seconds.earlier, done.is_shared = saved.seconds, saved.is_shared
            for epoch, lr in list(enumerate(learning_rates(recipe)))[first:]:
                batches = self._epoch_batches(phase.name, epoch, data, recipe.batch_size)
                with self._dropout(phase.name, epoch):
                    draws = self._draws("objective", phase.name, epoch)
                    done.losses = steps.epoch(epoch, lr, batches, draws)
                self.progress.epoch_finished(phase.name, epoch + 1, recipe.epochs, done.losses, lr)
                if keeper and epoch + 1 < recipe.epochs:
                    keeper.offer(partial(steps.snapshot, epoch + 1, done, started), is_last=False)
            refuse_bad_weights(phase)
            if keeper and first < recipe.epochs:
                keeper.offer(partial(steps.snapshot, recipe.epochs, done, started), is_last=True)
        if self.device.torch_device.type == "cuda":
            torch.cuda.synchronize()
        done.seconds.total = time.perf_counter() - started
        self.work.append(done)
        self.progress.phase_finished(phase.name, done.seconds.total)
        return PhaseResult(done.losses)

    def _epoch_batches(
        self, name: str, epoch: int, data: LabelledImages, batch_size: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        return epoch_batches(
            data,
            batch_size,
            self._draws("order", name, epoch),
            self._augmentation,
            self._draws("augment", name, epoch),
            device=self.device.torch_device,
            channels_last=self.device.channels_last,
        )

    def _draws(self, purpose: str, name: str, epoch: int) -> torch.Generator:
        return generator(self._data_seed, purpose, self._task, name, epoch)

    def _dropout(self, name: str, epoch: int) -> AbstractContextManager[None]:
        """Seed torch's global generator, from which dropout draws."""
        return seeded_globally(self._data_seed, "dropout", self._task, name, epoch)

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
