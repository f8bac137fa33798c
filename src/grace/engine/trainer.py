"""The trainer: runs phases and sweeps. The only epoch loop of the package."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from grace.base.errors import GraceError
from grace.base.randomness import generator, seeded_globally
from grace.data.augmentation import Augmentation
from grace.data.batches import batch_sizes, epoch_batches, row_batches
from grace.data.images import LabelledImages
from grace.engine import parts as graph
from grace.engine.batch_norm import synchronised
from grace.engine.checkpoint import Snapshot, SnapshotStore, SweepResult
from grace.engine.device import Device
from grace.engine.forward_backward import BatchRows, ForwardBackward
from grace.engine.loss_meter import LossMeter
from grace.engine.loss_meter import NonFiniteLossError as NonFiniteLossError
from grace.engine.loss_probe import measured
from grace.engine.parts import Forward
from grace.engine.phase import (
    GradientSweep,
    Loss,
    LossProbe,
    Parts,
    Phase,
    PhaseResult,
    Rounds,
    Sweep,
    Work,
)
from grace.engine.phase_run import PhaseRun, average_buffers, restored, snapshot
from grace.engine.progress import Observer, Progress, Silence
from grace.engine.ranks import Ranks
from grace.engine.schedule import learning_rates
from grace.engine.work import Seconds, WorkDone
from grace.nn.expandable import folded
from grace.settings.experiment import EngineSettings

Shared = TypeVar("Shared", SweepResult, Snapshot)


def _forward(module: nn.Module, *inputs: Any) -> Any:  # noqa: ANN401 - as the module gives
    return module(*inputs)


@final
class Trainer:
    """Runs phases and sweeps on one device.

    With several processes, each has a trainer, and all trainers get the same work in the same
    order. They share the batches of phases and gradient sweeps. Other sweeps run on the first
    process, which broadcasts the result: rounding differs between GPUs, and all processes must
    take the same decisions.

    Args:
        settings: device, precision, layout, compilation.
        augmentation: training augmentation and test transform of the data.
        data_seed: seed of image order and augmentation.
        progress: gets every phase, epoch and sweep; ``None`` shows nothing.
        ranks: the processes that share the work; ``None``: this process alone.
    """

    def __init__(
        self,
        settings: EngineSettings,
        augmentation: Augmentation,
        data_seed: int,
        progress: Progress | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.device = Device.from_settings(settings)
        self.progress: Progress = progress or Silence()
        self.observers: list[Observer] = []
        """Called before and after every phase and sweep, and after every epoch."""
        self.work: list[WorkDone] = []
        self.ranks = ranks or Ranks()
        self._settings = settings
        self._augmentation = augmentation.to(self.device.torch_device)
        self._data_seed = data_seed
        self._task = 0
        self._folded: dict[int, tuple[nn.Module, nn.Module]] = {}

    @property
    def eval_batch_size(self) -> int:
        """Images per batch in passes without training."""
        return self._settings.eval_batch_size

    def start_task(self, number: int) -> None:
        """Set the number of the task that comes next: it seeds the draws of its phases."""
        self._task = number
        self.work = []
        self._folded = {}

    def run(
        self, item: Work, snapshots: SnapshotStore | None = None, saved: SweepResult | None = None
    ) -> Any:  # noqa: ANN401 - a sweep's value is its reducer's
        """Run what a method yielded; return its result.

        With several processes, the first one alone gives what was saved; all others get it by its
        broadcast.

        Args:
            item: a phase or sweep.
            snapshots: stores snapshots; a phase goes on from its last one.
            saved: the result of a sweep, which is not run again.

        Raises:
            GraceError: if the saved buffers do not fit the sweep; nothing has changed then.
        """
        for observer in self.observers:
            observer.work_started(item)
        if isinstance(item, Phase | Rounds):
            result = self.optimise(item, snapshots)
        else:
            result = self._swept(item, saved)
        for observer in self.observers:
            observer.work_finished(item, result)
        return result

    def _swept(self, item: Sweep | GradientSweep | LossProbe, saved: SweepResult | None) -> Any:  # noqa: ANN401
        started, known = time.perf_counter(), saved
        if isinstance(item, GradientSweep):
            if saved is not None:
                self.restore_buffers(item, saved.buffers)  # Refused before others hear of it.
        elif saved is None and self.ranks.is_first:
            culprit = self._last_trained()
            value = (
                self.sweep(item, culprit) if isinstance(item, Sweep) else self._probe(item, culprit)
            )
            known = SweepResult(value, time.perf_counter() - started, {})
        known = self._agreed(SweepResult, known)
        done = WorkDone(item.name, 0, len(item.data))
        if known is None:
            assert isinstance(item, GradientSweep)
            result = self.differentiate(item, done.seconds)
            done.seconds.total = time.perf_counter() - started
        else:
            if isinstance(item, GradientSweep):
                self.restore_buffers(item, known.buffers)
            result = known.value
            done.seconds.total = known.seconds
            done.seconds.earlier = known.seconds if saved is not None else 0.0
        self.work.append(done)
        return result

    def _agreed(self, kind: type[Shared], own: Shared | None) -> Shared | None:
        """Return the value of the first process."""
        if not self.ranks.are_several:
            return own
        facts = self.ranks.broadcast_value(vars(own) if own is not None else None)
        return kind(**facts) if facts is not None else None

    def _last_trained(self) -> WorkDone | None:
        """Return the last phase that trained."""
        return next((work for work in reversed(self.work) if work.epochs), None)

    def sweep(self, sweep: Sweep, culprit: WorkDone | None = None) -> Any:  # noqa: ANN401
        """Pass over data once, in eval mode and order; return the reducer's value.

        Each process that calls this does the whole sweep itself.

        Args:
            sweep: the pass.
            culprit: the phase before it, whose learning rate is too high if an output is not
                finite; ``None``: outputs are not checked.

        Raises:
            NonFiniteLossError: naming the sweep and the culprit.
        """
        self.progress.sweep_started(sweep.name, len(sweep.data))
        modules = {name: self._frozen(part.module) for name, part in sweep.parts.items()}
        given = graph.last(sweep.parts)
        finite = torch.ones((), dtype=torch.bool, device=self.device.torch_device)
        # In float32 whatever the precision of training: rounding to bfloat16 would raise the
        # effective rank and let distances to class means tie.
        with torch.no_grad():
            for images, labels in self._sweep_batches(sweep):
                outputs = graph.run(sweep.parts, modules, images)
                joined = torch.cat([outputs[name] for name in given], dim=1)
                sweep.reducer.update(joined, labels)
                if culprit:
                    finite = joined.isfinite().all() & finite
        if culprit and not bool(finite):
            raise NonFiniteLossError(
                f"outputs are not finite after {culprit.end}, where '{sweep.name}' looks at images",
                culprit.name,
            )
        return sweep.reducer.result()

    def _probe(self, item: LossProbe, culprit: WorkDone | None) -> dict[str, float]:
        """Measure the loss around a part's weights; ``culprit`` as in ``sweep``."""
        self.progress.sweep_started(item.name, len(item.data))
        modules = {
            name: part.module if name == item.probed else self._frozen(part.module)
            for name, part in item.parts.items()
        }
        draws = partial(generator, self._data_seed, "measure", self._task)
        return measured(item, modules, self._plain_batches, draws, culprit)

    def _frozen(self, module: nn.Module) -> nn.Module:
        """Fold batch norm into a module's convolutions, once as long as nothing trains."""
        if not any(isinstance(part, nn.BatchNorm2d) for part in module.modules()):
            return module
        # The entry keeps the module alive, so that no other can take its id.
        entry = self._folded.get(id(module))
        if entry is None:
            entry = (module, self.device.place(folded(module)))
            self._folded[id(module)] = entry
        return entry[1]

    def _sweep_batches(self, sweep: Sweep) -> Iterator[tuple[Tensor, Tensor]]:
        if not sweep.augmented:
            return self._plain_batches(sweep.data)
        draws = generator(self._data_seed, "sweep", self._task, sweep.name)
        return self._in_order(sweep.data, self._augmentation, draws)

    def _plain_batches(self, data: LabelledImages) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield images in their order and in the test transform."""
        return self._in_order(data, replace(self._augmentation, operations=()), None)

    def _in_order(
        self, data: LabelledImages, augmentation: Augmentation, draws: torch.Generator | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        layout, device = self.device.channels_last, self.device.torch_device
        data, size = data.to(self.device.torch_device), self.eval_batch_size
        return epoch_batches(
            data, size, None, augmentation, draws, device=device, channels_last=layout
        )

    def differentiate(self, sweep: GradientSweep, seconds: Seconds) -> Any:  # noqa: ANN401
        """Compute gradients in one pass in train mode, without a step; return the reducer's value.

        In float32 whatever the precision of training: squares of gradients leave float16's range.

        Raises:
            NonFiniteLossError: naming the first batch whose loss or gradient is not finite.
        """
        assert len(sweep.data) > 0, f"sweep {sweep.name} has no data"
        self.progress.sweep_started(sweep.name, len(sweep.data))
        self._folded = {}  # Folded copies are about to be outdated.
        device = replace(self.device, precision=torch.float32)
        meter = LossMeter(device.torch_device, self.ranks)
        data = sweep.data.to(self.device.torch_device)
        batches = self._epoch_batches(sweep.name, 0, data, sweep.batch_size, self._augmentation)
        with self._training(sweep.parts), self._dropout(sweep.name, 0):
            modules = self._modules(sweep.parts)
            passes = ForwardBackward(sweep, modules, device, None, seconds, self.ranks)
            draws = self._draws("objective", sweep.name, 0)
            for losses, num_images in passes.run(batches, 0, draws):
                gradients = passes.gradients()
                sweep.reducer.update(gradients)
                norm = torch.nn.utils.get_total_norm(gradients.values())
                meter.add({**losses, "gradient": Loss(norm)}, num_images)
        average_buffers(sweep, self.ranks)
        culprit = self._last_trained()
        after = f" after {culprit.end}" if culprit else ""
        meter.means(f"'{sweep.name}'{after}", culprit.name if culprit else "")
        return sweep.reducer.result()

    def restore_buffers(self, sweep: GradientSweep, buffers: Mapping[str, Tensor]) -> None:
        """Set the modules' buffers as a finished gradient sweep had left them.

        Args:
            sweep: that is not run again.
            buffers: saved tensors by name, each in the shape of the module's own.

        Raises:
            GraceError: if they do not fit the sweep; the modules have not changed then.
        """
        own = graph.named_buffers(sweep.parts)
        forms = [{n: (t.shape, t.dtype) for n, t in of.items()} for of in (own, buffers)]
        if forms[0] != forms[1]:
            raise GraceError(f"sweep '{sweep.name}' moves other buffers")
        self._folded = {}
        for name, buffer in own.items():
            buffer.copy_(buffers[name])

    def optimise(self, work: Phase | Rounds, snapshots: SnapshotStore | None = None) -> Any:  # noqa: ANN401
        """Train a phase, or several in turn, for all epochs of its recipe.

        Args:
            work: a phase, or phases that take turns.
            snapshots: stores snapshots; training goes on after the epochs of the last one.

        Returns:
            The phase's result, or a list with a result of each phase.

        Raises:
            NonFiniteLossError: naming phase, epoch, batch and loss, at the end of that epoch.
        """
        epochs = work.phases[0].recipe.epochs
        for phase in work.phases:
            assert len(phase.data) > 0, f"phase {phase.name} has no data"
        self.progress.phase_started(work.name, epochs, sum(len(p.data) for p in work.phases))
        saved = self._agreed(Snapshot, snapshots.saved() if snapshots else None)
        started = time.perf_counter() - (saved.seconds if saved else 0.0)
        self._unfold(work.phases)
        runs = [self._steps(phase) for phase in work.phases]
        rates = [learning_rates(phase.recipe) for phase in work.phases]
        first = restored(runs, saved) if saved else 0
        for epoch in range(first, epochs):
            for run, lr in zip(runs, rates, strict=True):
                if len(runs) > 1:
                    self._unfold(work.phases)  # Another phase has trained parts frozen here.
                    run.use(self._modules(run.phase.parts))
                self._epoch(run, epoch, lr[epoch])
            if snapshots and epoch + 1 < epochs:
                snapshots.offer(partial(snapshot, runs, epoch + 1, started), is_last=False)
        for run in runs:
            run.equalise()
            run.refuse_bad_weights()
        if snapshots and first < epochs:
            snapshots.offer(partial(snapshot, runs, epochs, started), is_last=True)
        if self.device.torch_device.type == "cuda":
            torch.cuda.synchronize()
        for run in runs:
            if snapshots and snapshots.is_shared:
                run.note_weights()
            run.done.seconds.total = (time.perf_counter() - started) / len(runs)
            self.work.append(run.done)
        self.progress.phase_finished(work.name, runs[0].done.seconds.total * len(runs))
        results = [PhaseResult(run.done.losses) for run in runs]
        return results[0] if isinstance(work, Phase) else results

    def _steps(self, phase: Phase) -> PhaseRun:
        data = phase.data if phase.rows else phase.data.to(self.device.torch_device)
        modules = self._modules(phase.parts)
        return PhaseRun(phase, data, modules, self.device, self._forward_for(phase), self.ranks)

    def _epoch(self, run: PhaseRun, epoch: int, lr: float) -> None:
        """Train a phase for one epoch, and report it."""
        phase, recipe = run.phase, run.phase.recipe
        augmentation = self._augmentation
        if phase.augmentation is not None:
            augmentation = replace(augmentation, operations=tuple(phase.augmentation))
        if phase.rows:
            batches = self._row_batches(phase, epoch)
        else:
            batches = self._epoch_batches(
                phase.name, epoch, run.data, recipe.batch_size, augmentation, phase.views
            )
        if recipe.drop_last:
            full = batch_sizes(len(run.data), recipe.batch_size)
            batches = islice(batches, len(full) - (len(full) > 1 and full[-1] < full[0]))
        with self._training(phase.parts), self._dropout(phase.name, epoch):
            run.epoch(epoch, lr, batches, self._draws("objective", phase.name, epoch))
        losses = run.done.losses
        self.progress.epoch_finished(phase.name, epoch + 1, recipe.epochs, losses, lr)
        for observer in self.observers:
            observer.epoch_finished(phase, epoch + 1, losses)

    def _unfold(self, phases: Sequence[Phase]) -> None:
        """Drop the folded copies of all modules but those that no phase changes."""
        parts = [part for phase in phases for part in phase.parts.values()]
        moving = {id(part.module) for part in parts if part.changes}
        idle = {id(part.module) for part in parts} - moving
        self._folded = {key: entry for key, entry in self._folded.items() if key in idle}

    def _modules(self, parts: Parts) -> dict[str, nn.Module]:
        """Choose the module to run for every part: its own if it changes, else a folded copy."""
        return {
            name: part.module if part.changes else self._frozen(part.module)
            for name, part in parts.items()
        }

    def _epoch_batches(
        self,
        name: str,
        epoch: int,
        data: LabelledImages,
        batch_size: int,
        augmentation: Augmentation,
        views: int = 1,
    ) -> Iterator[BatchRows]:
        """Yield this process's rows of every batch of an epoch."""
        sizes = batch_sizes(len(data), batch_size)
        batches = epoch_batches(
            data,
            batch_size,
            self._draws("order", name, epoch),
            augmentation,
            self._draws("augment", name, epoch),
            device=self.device.torch_device,
            channels_last=self.device.channels_last,
            rows=self.ranks.rows if self.ranks.are_several else None,
            views=views,
        )
        return (BatchRows(*batch, size) for batch, size in zip(batches, sizes, strict=True))

    def _row_batches(self, phase: Phase, epoch: int) -> Iterator[BatchRows]:
        """Yield this process's rows of every batch of an epoch that reads no image."""
        labels, size = phase.data.labels, phase.recipe.batch_size
        batches = row_batches(
            phase.rows,
            labels,
            size,
            self._draws("order", phase.name, epoch),
            device=self.device.torch_device,
            wanted=self.ranks.rows if self.ranks.are_several else None,
        )
        sizes = batch_sizes(len(labels), size)
        for (rows, labels), num_images in zip(batches, sizes, strict=True):
            images = torch.empty((len(labels), 0, 0, 0), device=labels.device)
            yield BatchRows(images, labels, num_images, rows)

    def _draws(self, purpose: str, name: str, epoch: int) -> torch.Generator:
        return generator(self._data_seed, purpose, self._task, name, epoch)

    def _dropout(self, name: str, epoch: int) -> AbstractContextManager[None]:
        """Seed torch's global generator, from which dropout draws, differently in each process."""
        others = [self.ranks.rank] if self.ranks.rank else []
        return seeded_globally(self._data_seed, "dropout", self._task, name, epoch, *others)

    @contextmanager
    def _training(self, parts: Parts) -> Iterator[None]:
        """Put what trains into train mode; on several GPUs, batch norm uses the whole batch."""
        moving = graph.changing(parts)
        # On the CPU each process normalises by its rows.
        one_batch_norm = synchronised(moving) if self._synchronises else nullcontext()
        with graph.only_training(parts), one_batch_norm:
            yield

    @property
    def _synchronises(self) -> bool:
        return self.ranks.are_several and self.device.torch_device.type == "cuda"

    def _forward_for(self, phase: Phase) -> Forward | None:
        """Return the compiled forward pass of a phase; ``None``: modules are called as they are."""
        # Heads on stored features train in seconds, whatever the size of the images is.
        if not any("images" in part.reads for part in phase.parts.values()):
            return None
        compiles = self.device.compiles(phase.recipe, len(phase.data), phase.data.images.shape)
        # Synchronised batch norm exchanges in the middle of the pass, which nobody has compiled.
        if not compiles or self._synchronises:
            return None
        batch_size = phase.recipe.batch_size
        num_rows = phase.views * len(range(batch_size)[self.ranks.rows(batch_size)])
        compiled = _compiled_forward()

        def compiled_for_full_batches(module: nn.Module, *inputs: Any) -> Any:  # noqa: ANN401
            # The last, smaller batch would cost a compilation of its own, and a single layer gains
            # nothing.
            is_full = len(inputs[0]) == num_rows and any(True for _ in module.children())
            return compiled(module, *inputs) if is_full else module(*inputs)

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
