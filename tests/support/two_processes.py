"""What two processes make of the same work; ``test_torchrun`` reads it.

Each process writes down what it found: how far its gradients are from those of one process, what
its weights and exemplars hash to, what it heard and printed. Both are forks of one that has
imported all that is imported late; torchrun itself is ``elastic_launch`` and a parser of its
command line.
"""

import contextlib
import hashlib
import importlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from typing_extensions import override

import grace.engine.trainer
import grace.methods.module_factory
import grace.runs.run
import grace.runs.stream
from grace.base.randomness import generator
from grace.base.tensors import encode
from grace.data.augmentation import build_augmentation
from grace.engine.journal import Journal
from grace.engine.parts import frozen
from grace.engine.phase import Batch, GradientSweep, Loss, Part, Phase, Sweep, Work
from grace.engine.phase_run import PhaseRun
from grace.engine.ranks import Ranks
from grace.engine.trainer import NonFiniteLossError, Trainer
from grace.engine.work import Seconds
from grace.learner.learner import Learner
from grace.learner.model import Model
from grace.methods.ewc import EWC
from grace.methods.grace import Grace
from grace.nn.heads import LinearHead
from grace.nn.resnets import CifarResNet
from grace.runs.run import run as run_experiment
from grace.runs.stream import Stream
from grace.settings.experiment import BackboneSettings, EngineSettings, ScenarioSettings
from grace.settings.method import BaseMethodSettings
from support import failing_processes
from support.contract import VARIANTS
from support.interruptions import call_number, interrupted
from support.tiny_streams import (
    SIZE,
    class_names,
    copied_module,
    dataset,
    labelled,
    recipe,
    settings,
    watch,
)

METHODS = {name: own for name, own in VARIANTS.items() if name in (own.name, "grace-compresses")}
ENGINE = EngineSettings(device="cpu", compile=False, threads=1)
# Images of the known class 0 beside new ones: some losses are means over the new ones alone.
STREAM: tuple[Mapping[int, int], ...] = ({0: 14, 1: 14}, {0: 6, 2: 14, 3: 14})
# A batch of three is the first process's alone. What stands before it is odd: 28 images in the
# first task, then 34 and 12 exemplars, or the 28.
LEFT_OVER = 3


# --- Every method ---------------------------------------------------------------------------------


@final
class StillableBatchNorm(nn.BatchNorm2d):
    """Batch norm that can be kept in eval mode while everything else trains."""

    is_still = False

    @override
    def forward(self, input: Tensor) -> Tensor:
        self.training = self.training and not StillableBatchNorm.is_still
        return super().forward(input)


def stillable_resnet8(
    _: BackboneSettings, num_channels: int, seed: int, *purpose: str | int
) -> CifarResNet:
    backbone = CifarResNet(8, num_channels, generator(seed, *purpose))
    for parent in list(backbone.modules()):
        for name, norm in parent.named_children():
            if isinstance(norm, nn.BatchNorm2d):
                setattr(parent, name, StillableBatchNorm(norm.num_features))
    return backbone


@final
class Recorded:
    """The gradients of every batch; a reducer of gradient sweeps, and a step that takes none."""

    def __init__(self) -> None:
        self.gradients: list[Tensor] = []

    def update(self, gradients: Mapping[str, Tensor]) -> None:
        self.gradients.append(torch.cat([value.flatten() for value in gradients.values()]))

    def result(self) -> None:
        return

    @contextlib.contextmanager
    def instead_of_steps(self) -> Iterator[None]:
        def record(optimiser: torch.optim.SGD) -> None:
            grads = [p.grad for group in optimiser.param_groups for p in group["params"]]
            self.gradients.append(torch.cat([grad.flatten() for grad in grads]))

        with patched(torch.optim.SGD, "step", record):
            yield


@contextlib.contextmanager
def patched(owner: Any, name: str, value: object) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def gradients(item: Phase | GradientSweep, batch_size: int, trainer: Trainer) -> list[Tensor]:
    """Gradients of the batches of an item's first epoch, all at the weights as they are."""
    recorded = Recorded()
    if isinstance(item, GradientSweep):
        trainer.differentiate(replace(item, batch_size=batch_size, reducer=recorded), Seconds())
    else:
        own = item.recipe.model_copy(update={"epochs": 1, "batch_size": batch_size})
        with recorded.instead_of_steps():
            # Accumulators begin as they were handed in.
            state = {name: tensor.clone() for name, tensor in item.state.items()}
            trainer.optimise(replace(item, recipe=own, state=state))
    return recorded.gradients


def weights(made: Learner | Stream) -> str:
    """A hash of all that the method keeps beside its exemplars, buffers too."""
    digest = hashlib.sha256()
    for name, part in sorted(made.method.state.collect().parts.items()):
        digest.update(name.encode() + encode(part))
    return digest.hexdigest()


def taught(method: BaseMethodSettings, ranks: Ranks) -> dict[str, Any]:
    """Teach a learner with all processes; compare gradients before the work of each item is done.

    Gradients are those of whole odd batches and of ones with an empty slice, with batch norm in
    eval mode.
    """
    shape, mean, std = (3, SIZE, SIZE), (0.4,) * 3, (0.3,) * 3
    # As if it was saved: then its backbone is not tried before.
    made = Learner(Model(settings(method), shape, mean, std, is_saved=True, ranks=ranks))
    augmentation, seed = made.model.trainer._augmentation, made.settings.seeds.data
    pair = [Trainer(ENGINE, augmentation, seed, ranks=own) for own in (ranks, Ranks())]
    found: list[dict[str, Any]] = []

    def compare(item: Work) -> None:
        if isinstance(item, Sweep):
            return
        sizes = (len(item.data) - LEFT_OVER, LEFT_OVER)
        with patched(StillableBatchNorm, "is_still", True):
            together = gradients(item, sizes[0], pair[0])
            alone = gradients(item, sizes[0], pair[1]) if ranks.is_first else []
        for images, one, two in zip(sizes, alone, together, strict=False):
            difference = float((one - two).abs().max())
            largest = float(one.abs().max())
            found.append(
                {"item": item.name, "images": images, "largest": largest, "difference": difference}
            )

    watch(made, compare)
    hashes, kept = [], []
    for number, counts in enumerate(STREAM, start=1):
        data = labelled(counts)
        for trainer in pair:
            trainer.start_task(number)
        made.update(data.images, class_names(data))
        hashes.append(weights(made))
        memory = made.method.memory
        kept.append({str(own): memory.of_class(own).digest().hex() for own in memory.classes})
    losses = [[work.losses for work in update.work] for update in made.history]
    return {"weights": hashes, "exemplars": kept, "gradients": found, "losses": losses}


# --- Single phases and sweeps ---------------------------------------------------------------------


@final
class Rank:
    """Gives the rank of the process that swept."""

    def __init__(self, ranks: Ranks) -> None:
        self.rank = ranks.rank

    def update(self, outputs: Tensor, labels: Tensor) -> None:
        return

    def result(self) -> dict[str, Any]:
        return {"rank": self.rank, "tensor": torch.tensor([self.rank, 7]), "pair": (1.5, None)}


def small_works(ranks: Ranks) -> dict[str, Any]:
    """Single phases and sweeps in which the processes differ."""
    plain = build_augmentation("none", (0.4,) * 3, (0.3,) * 3, SIZE)
    trainer, data = Trainer(ENGINE, plain, 1, ranks=ranks), labelled({0: 5, 1: 7})
    trainer.start_task(1)
    backbone = CifarResNet(8, 3, generator(1, "small"))
    conv, norm = backbone.stem[0], backbone.stem[1]
    assert isinstance(norm, nn.BatchNorm2d)
    head, noise, batches = LinearHead(64, 2, generator(1, "small head")), list[float](), 0

    def objective(batch: Batch) -> dict[str, Loss]:
        nonlocal batches
        batches += 1
        noise.extend((float(torch.rand(1)), float(torch.rand(1, generator=batch.generator))))
        value = batch["head"].square().mean()
        bad = batches == 6 and not ranks.is_first
        return {
            "label": Loss(batch.labels.float().mean()),
            "bad": Loss(value * (float("nan") if bad else 1)),
        }

    parts: dict[str, Any] = {
        "parts": {"backbone": Part(backbone), "head": Part(head, ["backbone"])},
        "objective": objective,
        "data": data,
    }

    def phase(name: str, epochs: int, batch_size: int) -> Phase:
        return Phase(name=name, recipe=recipe(epochs, 1e-6, batch_size), **parts)

    def means() -> list[list[float]]:
        """A tenth of the first channels' means over all images, and what batch norm says of it."""
        pixels = data.images.gather(torch.arange(12)).float()
        outputs = conv((pixels / 255 - 0.4) / 0.3)
        told = norm.running_mean
        assert told is not None
        return [(outputs.mean((0, 2, 3)) / 10).tolist(), told.tolist()]

    (expected, _), found = means(), dict[str, Any]()
    trainer.optimise(phase("statistics", 1, 12))
    found["means"] = [expected, means()[1]]
    found["head before"] = head.weight.flatten().tolist()
    with torch.no_grad():
        head.weight += ranks.rank
    # Batches of 5, 5 and 2: the second process sees other labels than the first.
    found["losses"] = trainer.optimise(phase("apart", 1, 5)).losses
    found["head"] = head.weight.flatten().tolist()
    found["noise"] = noise[-2:]
    told = trainer.run(Sweep(name="rank", parts=frozen([backbone]), data=data, reducer=Rank(ranks)))
    found["told"] = {**told, "tensor": told["tensor"].tolist()}
    try:
        # Four batches came before, and each epoch has three.
        trainer.optimise(phase("bad", 3, 4))
    except NonFiniteLossError as error:
        found["error"] = str(error)
    return found


# --- Runs -----------------------------------------------------------------------------------------


def run(method: BaseMethodSettings, directory: Path) -> dict[str, Any]:
    """Carry out a run, or go on with it; give its record, and what its last weights hash to."""
    hashes, learn = [""], Stream.learn

    def noting(made: Stream, *arguments: Any) -> Any:
        done = learn(made, *arguments)
        hashes.append(weights(made))
        return done

    chosen = settings(method, scenario=ScenarioSettings(base=3, increment=1))
    with patched(Stream, "learn", noting):
        record = run_experiment(chosen, directory=directory, resume=True)
    lines = [task.model_dump(mode="json") for task in record.tasks]
    for line in lines:  # Without what the clock said.
        del line["seconds"]
        line["phases"] = [{**phase, "seconds": 0, "earlier": 0} for phase in line["phases"]]
    processes = record.info.hardware["processes"]
    facts = {"status": record.info.status, "processes": processes, "tasks": lines}
    return {**facts, "weights": hashes[-1]}


@contextlib.contextmanager
def killed(owner: Any, name: str, call: int) -> Iterator[None]:
    """Interrupt every process at the same call of a function, just before it happens."""
    with interrupted(owner, name, call_number(call)):
        yield
    dist.destroy_process_group()  # The process would have ended.


def runs(folder: Path) -> dict[str, Any]:
    """Whole runs: straight, and killed at the worst moments and gone on with."""
    own, images = recipe(2, batch_size=12), dataset(5, train=9, test=5)
    grace.runs.run.load_dataset = lambda _: images
    # Every epoch leaves a snapshot.
    Journal.__init__.__defaults__ = (0.0, 0.0)  # type: ignore[misc]
    grown = Grace.Settings(base=own, grow=own, compress=own, expand_at=(2,))
    held = EWC.Settings(base=own, update=own)
    found = {"straight": run(grown, folder / "straight")}
    # In task 3, after 2 epochs of base, 2 of grow, and 1 of grow again.
    with killed(PhaseRun, "epoch", 6):
        run(grown, folder / "resumed")
    # After 1 more of grow and 1 of compress.
    with killed(PhaseRun, "epoch", 3):
        run(grown, folder / "resumed")
    found["resumed"] = run(grown, folder / "resumed")
    found["fisher"] = run(held, folder / "fisher")
    # The last task has its Fisher information, but is not saved.
    with killed(grace.runs.stream, "refuse_diverged", 3):
        run(held, folder / "fisher resumed")
    found["fisher resumed"] = run(held, folder / "fisher resumed")
    return found


def find(folder: Path) -> None:
    """Write down everything that this process finds."""
    grace.methods.module_factory.build_backbone = stillable_resnet8  # type: ignore[assignment]
    torch.nn.Module.__deepcopy__ = copied_module  # type: ignore[attr-defined]
    # Batch norms of its own are not folded, and looking for others takes longer than the passes.
    grace.engine.trainer.folded = lambda module: module
    found: dict[str, Any] = {}
    with Ranks.started(ENGINE) as ranks:
        rank = ranks.rank
        found["taught"] = {name: taught(method, ranks) for name, method in METHODS.items()}
        found["small works"] = small_works(ranks)
    found["runs"] = runs(folder)
    (folder / f"{rank}.json").write_text(json.dumps(found))


def start(folder: Path) -> None:
    """Start two processes as torchrun starts them."""
    for late in ("sklearn.datasets", "torch._dynamo", "grace.cli.run"):
        importlib.import_module(late)
    # Before torchrun's threads: a fork has only the thread that forks.
    failing_processes.find(folder)
    # By number, as the name of a machine without a network may lead nowhere.
    standalone = {"rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0", "local_addr": "127.0.0.1"}
    here = LaunchConfig(1, 1, 2, run_id="suite", max_restarts=0, start_method="fork", **standalone)
    elastic_launch(here, find)(folder)


if __name__ == "__main__":
    # By its name: what is pickled for the processes says where it comes from.
    importlib.import_module("support.two_processes").start(Path(sys.argv[1]))
