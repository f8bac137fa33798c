"""What two processes make of the same work; ``test_torchrun`` reads it.

Each process writes down what it found: how far its gradients are from those of one process, what
its weights and exemplars hash to, what it heard and printed.
"""

import contextlib
import copy
import hashlib
import io
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from typing_extensions import override

import grace.data.sources
import grace.engine.trainer
import grace.methods.module_factory
import grace.runs.stream
from grace.base.randomness import generator
from grace.base.tensors import encode
from grace.cli import main
from grace.data.augmentation import build_augmentation
from grace.data.memory import ExemplarMemory
from grace.engine.journal import Journal
from grace.engine.parts import frozen
from grace.engine.phase import (
    Batch,
    GradientSweep,
    Loss,
    LossGradients,
    Part,
    Phase,
    Sweep,
    Work,
)
from grace.engine.phase_run import PhaseRun
from grace.engine.ranks import Ranks
from grace.engine.trainer import NonFiniteLossError, Trainer
from grace.engine.work import Seconds
from grace.learner.learner import Learner
from grace.learner.model import Model
from grace.methods.ewc import EWC
from grace.methods.grace import Grace
from grace.methods.method import Method
from grace.nn.heads import LinearHead
from grace.nn.resnets import CifarResNet
from grace.runs.model import RunRecord
from grace.runs.record import read_record
from grace.runs.run import run as run_experiment
from grace.runs.stream import Stream
from grace.settings.experiment import BackboneSettings, EngineSettings, ScenarioSettings
from grace.settings.method import BaseMethodSettings
from grace.settings.recipe import Recipe
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
    task,
    watch,
)

ENGINE = EngineSettings(device="cpu", compile=False, threads=1)
LEARNS = recipe(epochs=4, batch_size=12)
# CREATE's scores differ little in so few steps, the more the larger the scale.
EASIER: dict[str, dict[str, Any]] = {"create": {"score_scale": 0.3}}
# Images of the known class 0 beside new ones: some losses are means over the new ones alone.
STREAM: tuple[Mapping[int, int], ...] = ({0: 14, 1: 14}, {0: 6, 2: 14, 3: 14})
# A batch of three is the first process's alone. What stands before it is odd: 28 images in the
# first task, then 34 and 12 exemplars, or the 28.
LEFT_OVER = 3


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


def learning(method: BaseMethodSettings, own: Recipe) -> BaseMethodSettings:
    """A method's settings with one recipe for all of its phases."""
    recipes = {name for name, value in method if isinstance(value, Recipe)}
    return method.model_copy(update=dict.fromkeys(recipes, own))


def learner(method: BaseMethodSettings, ranks: Ranks | None = None) -> Learner:
    shape, mean, std = (3, SIZE, SIZE), (0.4,) * 3, (0.3,) * 3
    # As if it was saved: then its backbone is not tried before.
    return Learner(Model(settings(method), shape, mean, std, is_saved=True, ranks=ranks))


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
        step = torch.optim.SGD.step

        def record(optimiser: torch.optim.SGD) -> None:
            grads = [p.grad for group in optimiser.param_groups for p in group["params"]]
            self.gradients.append(torch.cat([grad.flatten() for grad in grads]))

        torch.optim.SGD.step = record  # type: ignore[assignment]
        try:
            yield
        finally:
            torch.optim.SGD.step = step  # type: ignore[method-assign]


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


@final
class Probe:
    """Compares, before a learner's work is done, its gradients with those of one process."""

    def __init__(self, taught: Learner, ranks: Ranks) -> None:
        augmentation, seed = taught.trainer._augmentation, taught.settings.seeds.data
        self.together = Trainer(ENGINE, augmentation, seed, ranks=ranks)
        self.alone = Trainer(ENGINE, augmentation, seed)
        self.ranks = ranks
        self.found: list[dict[str, Any]] = []

    def __call__(self, item: Work) -> None:
        if isinstance(item, Sweep):
            return
        size = len(item.data) - LEFT_OVER
        with still():
            together = gradients(item, size, self.together)
            if not self.ranks.is_first:
                return
            alone = gradients(item, size, self.alone)
        for images, one, two in zip((size, LEFT_OVER), alone, together, strict=True):
            largest, difference = one.abs().max(), (one - two).abs().max()
            self.found.append(
                {
                    "item": item.name,
                    "images": images,
                    "largest": float(largest),
                    "difference": float(difference),
                }
            )


@contextlib.contextmanager
def still() -> Iterator[None]:
    StillableBatchNorm.is_still = True
    try:
        yield
    finally:
        StillableBatchNorm.is_still = False


def exemplars(method: Method) -> dict[str, str]:
    """A hash of each class's exemplars, in their order."""
    memory = method.memory
    return {str(index): memory.of_class(index).digest().hex() for index in memory.classes}


def herded_alone(
    method: Method, before: ExemplarMemory, alone: Trainer, number: int, num_old: int
) -> dict[str, str]:
    """The exemplars that one process would have herded with the weights as they are."""
    twin = copy.deepcopy(method, {id(method.memory): before, id(method.factory): method.factory})
    steps = twin.remember(task(number, STREAM[number - 1], num_old))
    try:
        item = next(steps)
        while True:
            item = steps.send(alone.run(item))
    except StopIteration:
        return exemplars(twin)


def weights(made: Learner | Stream) -> str:
    """A hash of all that the method keeps beside its exemplars, buffers too."""
    digest = hashlib.sha256()
    for name, part in sorted(made.method.state.collect().parts.items()):
        digest.update(name.encode() + encode(part))
    return digest.hexdigest()


def taught(method: BaseMethodSettings, ranks: Ranks) -> dict[str, Any]:
    """Teach a learner with all processes, and look at everything on the way."""
    made = learner(method, ranks)
    probe = Probe(made, ranks)
    watch(made, probe)
    hashes, kept, expected = [], [], []
    for number, counts in enumerate(STREAM, start=1):
        num_old, data = len(made.class_names), labelled(counts)
        probe.together.start_task(number)
        probe.alone.start_task(number)
        before = made.method.memory.copy()
        made.update(data.images, class_names(data))
        hashes.append(weights(made))
        kept.append(exemplars(made.method))
        if ranks.is_first and method.traits.memory == "exemplars":
            probe.alone.start_task(number)
            known = made.method.features
            # Copies of a method share its features: what one process alone computes must not stay.
            rows = None if known is None else dict(known._rows)
            expected.append(herded_alone(made.method, before, probe.alone, number, num_old))
            if known is not None and rows is not None:
                known._rows = rows
    return {
        "weights": hashes,
        "exemplars": kept,
        "herded alone": expected,
        "gradients": probe.found,
        "losses": [[work.losses for work in update.work] for update in made.history],
        "accuracy": accuracies(made),
    }


def accuracies(made: Learner) -> dict[str, float]:
    """Shares of test images that are named rightly: of all classes, and of the last task's."""
    test = labelled(dict.fromkeys(range(4), 25), seed=1)
    scores = next(iter(made.scores(test.images).values()))
    right = (scores.argmax(dim=1) == test.labels).double()
    return {"all": float(right.mean()), "new": float(right[test.labels >= 2].mean())}


def taught_alone(method: BaseMethodSettings) -> dict[str, Any]:
    made = learner(method)
    for counts in STREAM:
        data = labelled(counts)
        made.update(data.images, class_names(data))
    return {"accuracy": accuracies(made)}


@final
class Heard:
    """Notes the events of a run."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def __getattr__(self, event: str) -> Any:
        return lambda *details: self.events.append(event)


def run(method: BaseMethodSettings, directory: Path, heard: Any = None) -> dict[str, Any]:
    """Carry out a run, or go on with it; give its record, and what its last weights hash to."""
    hashes, learn = [""], Stream.learn

    def noting(made: Stream, *arguments: Any) -> Any:
        done = learn(made, *arguments)
        hashes.append(weights(made))
        return done

    chosen = settings(method, scenario=ScenarioSettings(base=3, increment=1))
    Stream.learn = noting  # type: ignore[method-assign]
    try:
        record = run_experiment(chosen, directory=directory, progress=heard, resume=True)
    finally:
        Stream.learn = learn  # type: ignore[method-assign]
    return {**described(record), "weights": hashes[-1]}


def described(record: RunRecord) -> dict[str, Any]:
    """A record without what the clock said."""
    lines = [task.model_dump(mode="json") for task in record.tasks]
    for line in lines:
        del line["seconds"]
        line["phases"] = [{**phase, "seconds": 0, "earlier": 0} for phase in line["phases"]]
    return {
        "directory": record.directory.name,
        "status": record.info.status,
        "processes": record.info.hardware["processes"],
        "tasks": lines,
    }


@contextlib.contextmanager
def killed(owner: Any, name: str, call: int) -> Iterator[None]:
    """Interrupt every process at the same call of a function, just before it happens."""
    with interrupted(owner, name, call_number(call)):
        yield
    dist.destroy_process_group()  # The process would have ended.


def runs(folder: Path) -> dict[str, Any]:
    """Whole runs: straight, and killed at the worst moments and gone on with."""
    own, images = recipe(2, batch_size=12), dataset(5, train=9, test=5)
    grace.data.sources.load_dataset = lambda _: images
    # Every epoch leaves a snapshot.
    Journal.__init__.__defaults__ = (0.0, 0.0)  # type: ignore[misc]
    grown, heard = Grace.Settings(base=own, grow=own, compress=own, expand_at=(2,)), Heard()
    held = EWC.Settings(base=own, update=own)
    found = {"straight": run(grown, folder / "straight", heard)}
    # In task 3, after 2 epochs of base, 2 of grow, and 1 of grow again.
    with killed(PhaseRun, "epoch", 6):
        run(grown, folder / "resumed")
    # After 1 more of grow and 1 of compress.
    with killed(PhaseRun, "epoch", 3):
        run(grown, folder / "resumed")
    found["resumed"] = run(grown, folder / "resumed")
    found["again"] = run(grown, folder / "resumed")
    found["fisher"] = run(held, folder / "fisher")
    # The last task has its Fisher information, but is not saved.
    with killed(grace.runs.stream, "refuse_diverged", 3):
        run(held, folder / "fisher resumed")
    found["fisher resumed"] = run(held, folder / "fisher resumed")
    wild = Grace.Settings(base=recipe(2, 1e30), grow=own, compress=own)
    try:
        run(wild, folder / "wild")
    except NonFiniteLossError as error:
        # As it stands for whoever comes first.
        info = read_record(folder / "wild").info
        found["wild"] = {"error": str(error), "status": info.status, "recorded": info.error}
        dist.destroy_process_group()
    return {**found, "heard": heard.events}


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
        bad = batches == 7 and not ranks.is_first
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

    def means() -> dict[str, list[float]]:
        """A tenth of the first channels' means over all images, and what batch norm says of it."""
        pixels = data.images.gather(torch.arange(12)).float()
        outputs = conv((pixels / 255 - 0.4) / 0.3)
        told = norm.running_mean
        assert told is not None
        return {"expected": (outputs.mean((0, 2, 3)) / 10).tolist(), "told": told.tolist()}

    found: dict[str, Any] = {"before": means()["expected"]}
    trainer.optimise(phase("statistics", 1, 12))
    found["running mean"] = means()["told"]
    found["head before"] = head.weight.flatten().tolist()
    with torch.no_grad():
        head.weight += ranks.rank
    # Batches of 5, 5 and 2: the second process sees other labels than the first.
    found["losses"] = trainer.optimise(phase("apart", 1, 5)).losses
    found["head"] = head.weight.flatten().tolist()
    found["noise"] = noise[-2:]
    norm.reset_running_stats()
    trainer.run(GradientSweep(name="statistics", batch_size=12, reducer=Recorded(), **parts))
    found["swept"] = means()
    swept = Sweep(name="rank", parts=frozen([backbone]), data=data, reducer=Rank(ranks))
    told = trainer.run(swept)
    found["told"] = {**told, "tensor": told["tensor"].tolist()}
    try:
        # Five batches came before, and each epoch has three.
        trainer.optimise(phase("bad", 3, 4))
    except NonFiniteLossError as error:
        found["error"] = str(error)
    return found


# Images, images per batch, views: batches of uneven slices, of one slice, and of a single image,
# fewer than there are processes.
WHOLE_BATCHES = ((13, 5, 1), (13, 5, 2), (14, 4, 3), (3, 1, 2))


def whole_batches(ranks: Ranks) -> list[dict[str, Any]]:
    """Losses that compare rows of the whole batch, and noise on them, beside one process's."""
    shift = build_augmentation("shift", (0.4,) * 3, (0.3,) * 3, SIZE)
    found = []
    for images, batch_size, views in WHOLE_BATCHES:
        one, two = (
            contrasted(Trainer(ENGINE, shift, 1, ranks=own), images, batch_size, views)
            for own in (Ranks(), ranks)
        )
        for number, alone in enumerate(one["gradients"]):
            together = two["gradients"][number]
            found.append(
                {
                    "case": [images, batch_size, views, number],
                    "largest": float(alone.abs().max()),
                    "difference": float((alone - together).abs().max()),
                    "losses": [one["losses"], two["losses"]],
                    "same": {
                        name: torch.equal(one[name][number], two[name][number])
                        for name in ("images", "labels", "noise")
                    },
                    "together": two["together"][number] and one["together"][number],
                    "rows": [len(one["images"][number]), one["own rows"][number]],
                    "own rows": two["own rows"][number],
                }
            )
        assert len(one["gradients"]) == len(two["gradients"])
    return found


def contrasted(trainer: Trainer, images: int, batch_size: int, views: int) -> dict[str, Any]:
    """Gradients of an epoch of one phase, and what its objective saw."""
    trainer.start_task(1)
    net = LinearHead(3 * SIZE * SIZE, 4, generator(1, "contrasted"))
    seen: dict[str, list[Any]] = {
        name: [] for name in ("images", "labels", "noise", "together", "own rows")
    }

    def objective(batch: Batch) -> dict[str, Loss]:
        own = batch["net"]
        features = batch.everyone(nn.functional.normalize(own))
        labels = batch.everyone(batch.labels)
        likeness = features @ features.T / 0.5
        likeness = likeness.masked_fill(torch.eye(len(labels), dtype=torch.bool), -1e4)
        partners = labels[:, None] == labels
        share = -(likeness.log_softmax(dim=1) * partners.fill_diagonal_(False)).sum(dim=1)
        noise = batch.normal(own)
        seen["noise"].append(batch.everyone(noise))
        seen["images"].append(batch.everyone(batch.images))
        seen["labels"].append(labels)
        seen["own rows"].append(len(own))
        pairs = batch.labels.unflatten(0, (-1, views))
        seen["together"].append(bool((pairs == pairs[:, :1]).all()))
        return {
            "contrast": Loss(share.mean(), 0.7, over="batch"),
            "noise": Loss((own + noise).square().mean(), 0.1),
            "length": Loss(net.weight.square().sum(), 1e-3, over="nothing"),
        }

    def rule(gradients: LossGradients) -> dict[str, Tensor]:
        one, two = (gradients.of([name], ["net.bias"]) for name in ("contrast", "noise"))
        return {"net.bias": one["net.bias"] - 2 * two["net.bias"]}

    phase = Phase(
        name="contrast",
        parts={"flat": Part(nn.Flatten(), trains=False), "net": Part(net, ["flat"])},
        objective=objective,
        recipe=recipe(1, 0.1, batch_size),
        data=labelled({0: images // 2, 1: images - images // 2}),
        views=views,
        rule=rule,
    )
    recorded = Recorded()
    with recorded.instead_of_steps():
        losses = trainer.optimise(phase).losses
    return {"gradients": recorded.gradients, "losses": losses, **seen}


def command(folder: Path) -> dict[str, Any]:
    """What a run prints that is asked for by a command."""
    recipes = [f"method.{name}.epochs=1" for name in ("base", "update")]
    words = ["method=replay", "engine.threads=1", "engine.compile=false", "seed=1", *recipes]
    sys.argv = ["grace", "run", "digits", "--no-report", "--out", str(folder / "command"), *words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    return {"out": out.getvalue(), "err": err.getvalue(), "code": code}


def look(folder: Path) -> dict[str, Any]:
    """Find everything out."""
    found: dict[str, Any] = {"together": {}, "alone": {}}
    with Ranks.started(ENGINE) as ranks:
        for number, (name, method) in enumerate(VARIANTS.items()):
            own = learning(method, LEARNS).model_copy(update=EASIER.get(name, {}))
            found["together"][name] = taught(own, ranks)
            if number % ranks.num_processes == ranks.rank:
                found["alone"][name] = taught_alone(own)
        found["small works"] = small_works(ranks)
        found["whole batches"] = whole_batches(ranks)
    return {**found, "rank": ranks.rank, "runs": runs(folder), "command": command(folder)}


def find(folder: Path) -> None:
    """Write down everything that this process finds."""
    grace.methods.module_factory.build_backbone = stillable_resnet8  # type: ignore[assignment]
    torch.nn.Module.__deepcopy__ = copied_module  # type: ignore[attr-defined]
    # Batch norms of its own are not folded, and looking for others takes longer than the passes.
    grace.engine.trainer.folded = lambda module: module
    found = look(folder)
    (folder / f"{found['rank']}.json").write_text(json.dumps(found))
