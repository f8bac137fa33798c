"""Works for ``kills``: whole runs, learners' lives, and every verb that changes a learner.

Each can be called again and again in one folder, by processes that go on where others were killed.
What is compared leaves out what the clock says, and nothing else.
"""

import hashlib
import importlib
import json
import pkgutil
import shutil
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch._dynamo

import grace.methods.module_factory
import grace.nn.expandable
import grace.runs.run
from grace.engine.checkpoint import Snapshot
from grace.engine.journal import Journal
from grace.engine.phase import Phase
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.grace import Grace
from grace.methods.replay import Replay
from grace.runs.run import run as run_experiment
from grace.settings.experiment import MemorySettings, ScenarioSettings
from support import tiny_streams
from support.commands import ran
from support.tiny_streams import class_names, labelled, recipe, settings

if TYPE_CHECKING:
    from support.kills import Points

# All is there before the first fork, also what is imported late.
for module in pkgutil.walk_packages(grace.__path__, "grace."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)

Facts = dict[str, Any]
CLOCK = {"seconds", "earlier", "date", "created", "started", "finished"}
SHORT = recipe(2, batch_size=8)


def prepare() -> None:
    """Make work quick and moments dense: a small network, a snapshot after every epoch."""
    grace.methods.module_factory.build_backbone = tiny_streams._resnet8
    grace.nn.expandable._conv_norm_pairs = tiny_streams.pairs_to_fold
    torch.nn.Module.__deepcopy__ = tiny_streams.copied_module  # type: ignore[attr-defined]
    Journal.__init__.__defaults__ = (0.0, 0.0)
    grace.runs.run.commit = lambda: None  # no processes of git's


# --- Runs -----------------------------------------------------------------------------------------


def run(folder: Path, points: "Points") -> Facts:
    """A run of three tasks: base, grow, compress with two backbones."""
    return _run(folder, Grace.Settings(base=SHORT, grow=SHORT, compress=SHORT, expand_at=(2,)))


def forgetful_run(folder: Path, points: "Points") -> Facts:
    """The first run, but whoever goes on within a phase forgets the optimiser's momenta."""
    saved_phase = Journal.saved_phase

    def without_momenta(journal: Journal, number: int, phase: Phase) -> Snapshot | None:
        saved = saved_phase(journal, number, phase)
        for name, tensor in saved.tensors.items() if saved else ():
            if name.startswith("optimiser/"):
                tensor.zero_()
        return saved

    Journal.saved_phase = without_momenta  # type: ignore[method-assign]
    return run(folder, points)


def _run(folder: Path, method: Any) -> Facts:
    prepare()
    images = tiny_streams.dataset(4, train=9, test=5)
    chosen = settings(method, scenario=ScenarioSettings(base=2, increment=1))
    directory = folder / "run"
    run_experiment(chosen, directory=directory, dataset=images, resume=True, keep=True)
    facts = {
        "run": json.loads((directory / "run.json").read_text()),
        "tasks": [json.loads(line) for line in (directory / "tasks.jsonl").open()],
        "state": hashlib.sha256((directory / "state.safetensors").read_bytes()).hexdigest(),
        "files": _files(directory),
    }
    return without(CLOCK, facts)


# --- Learners' lives ------------------------------------------------------------------------------


def learner(folder: Path, points: "Points") -> Facts:
    """A learner under a ceiling: made, taught, taught again, refused, made to forget, revived."""
    short = recipe(2, lr=0.1, batch_size=16)
    method = Grace.Settings(base=short, grow=short, compress=short, expand_at=(3,))
    memory = MemorySettings(size=None, validation=2, max_mb=0.65)
    made = _live(folder, points, method, memory, 8, STEPS)
    asked = labelled(dict.fromkeys(range(4), 4), seed=8).images
    scores = {name: own.numpy().tobytes() for name, own in made.scores(asked).items()}
    facts = {
        **_describe_home(folder / "learner"),
        "scores": {name: hashlib.sha256(own).hexdigest() for name, own in scores.items()},
        "predictions": made.predict(asked),
    }
    return without(CLOCK, facts)


def encoded_learner(folder: Path, points: "Points") -> Facts:
    """A learner whose exemplars are WebP files: taught, taught again, made to forget, revived."""
    memory = MemorySettings(format="webp", size=None, max_mb=0.45, validation=2)
    steps = (_large(1, 0, 1), _large(2, 1, 2), lambda made: _forgets(made, 0), _large(4, 0, 3))
    _live(folder, points, Replay.Settings(base=recipe(), update=recipe()), memory, 32, steps)
    home = ModelStore.open(folder / "learner")
    newest = home.document(home.numbers()[-1])
    encoded = [sorted(home.read(ref, "it")) for ref in newest.exemplars.values()]
    return without(CLOCK, {**_describe_home(folder / "learner"), "encoded": encoded})


def _live(
    folder: Path,
    points: "Points",
    method: Any,
    memory: MemorySettings,
    side: int,
    steps: Sequence[Callable[[Learner], None]],
) -> Learner:
    """Make a learner, and let it go through those steps that have not returned yet."""
    prepare()
    home, returned = folder / "learner", folder / "returned.txt"
    if (home / "model.json").exists():
        made = Learner.load(home)
    else:
        chosen = settings(method, memory=memory)
        made = Learner.create(chosen, shape=(3, side, side), directory=home)
    done = int(returned.read_text()) if returned.exists() else 0
    for number, step in enumerate(steps[done:], start=done + 1):
        step(made)
        points.reach("step")
        points.note(returned, str(number))
    return made


def _large(seed: int, *classes: int) -> Callable[[Learner], None]:
    def step(learner: Learner) -> None:
        data = labelled(dict.fromkeys(classes, 10), seed=seed)
        pixels = torch.nn.functional.interpolate(data.images.gather(torch.arange(20)), 32)
        learner.update(pixels, class_names(data))

    return step


def _first(learner: Learner) -> None:
    data = labelled({0: 10, 1: 10})
    learner.update(data.images, class_names(data))


def _again(learner: Learner) -> None:
    # To ask for it again when it is done would be to ask for one more.
    if len(learner.history) < 2:
        data = labelled({0: 10, 1: 10})
        learner.update(data.images, class_names(data), again=True)


def _grow(learner: Learner) -> None:
    data, held_out = labelled({2: 10}), labelled({2: 3}, seed=5)
    apart = (held_out.images, class_names(held_out))
    learner.update(data.images, class_names(data), validation=apart)


def _refused(learner: Learner) -> None:
    """Images of all known classes under each other's names: accuracy on them falls."""
    data = labelled({0: 16, 1: 16, 2: 16}, seed=3)
    names = [f"class {(int(label) + 2) % 3}" for label in data.labels]
    learner.update(data.images, names, max_drop=0)


def _forgets(learner: Learner, index: int) -> None:
    if index not in learner.forgotten:
        learner.forget(f"class {index}")


def _revive(learner: Learner) -> None:
    data = labelled({1: 8, 3: 10})
    learner.update(data.images, class_names(data), max_drop=100)


STEPS: tuple[Callable[[Learner], None], ...] = (
    *(_first, _again, _grow, _refused, lambda made: _forgets(made, 1), _revive),
)

# --- Verbs of the command line --------------------------------------------------------------------


def forget(folder: Path, points: "Points") -> Facts:
    return _verb(folder, points, "forget", HOME, "class 1", "--yes")


def prune(folder: Path, points: "Points") -> Facts:
    """Down to the newest version."""
    return _verb(folder, points, "prune", HOME, "--keep", 1)


def rollback(folder: Path, points: "Points") -> Facts:
    return _verb(folder, points, "rollback", HOME, 1)


def set_memory(folder: Path, points: "Points") -> Facts:
    """A smaller memory, which drops exemplars and held-out images."""
    smaller = ("memory.size=8", "memory.validation=1", "memory.max_mb=2")
    return _verb(folder, points, "set", HOME, *smaller)


def discard(folder: Path, points: "Points") -> Facts:
    """``grace learn --discard`` of an update that was interrupted."""
    return _verb(folder, points, "learn", "--model", HOME, "--discard")


def export(folder: Path, points: "Points") -> Facts:
    """It changes nothing in the learner."""
    facts = _verb(folder, points, "export", HOME, "--out", folder / "model.onnx", "--force")
    return {**facts, "made": hashlib.sha256((folder / "model.onnx").read_bytes()).hexdigest()}


STUDY = """
title: DER, and replay with as many bytes
reference: der
scales: {small: {protocols: {tiny: digits}, seeds: [1], images_per_backbone: 2}}
rows:
  der: {method: der}
  replay: {method: replay, memory: aligned}
figures: [accuracy]
claims: [{id: A, says: DER is better, left: der, right: replay, metrics: {last: 0}}]
"""


def study(folder: Path, points: "Points") -> Facts:
    """With a run that waits for another one; its runs are not killed."""
    points.note(folder / "mine.yaml", STUDY)
    return _many_runs(folder, "study", folder / "mine.yaml", *short_runs("der", "replay"))


def short_runs(*methods: str) -> list[str]:
    """Settings for runs of two tasks on few digits, one epoch for each phase of some methods."""
    few = ("data.max_train_per_class=4", "scenario.base=4", "scenario.increment=6")
    phases = {name: ("base", "grow" if name == "der" else "update") for name in methods}
    return [*few, *(f"methods.{m}.{p}.epochs=1" for m, own in phases.items() for p in own)]


def _many_runs(folder: Path, *words: object) -> Facts:
    ran(*words, "--jobs", 1, "--out", folder / "out")
    runs = sorted((folder / "out" / "runs").iterdir())
    facts = {
        "tasks": [[json.loads(line) for line in (run / "tasks.jsonl").open()] for run in runs],
        "files": [name for name in _files(folder / "out") if not name.startswith("first-tasks/")],
    }
    # Which run trained a first task that several share depends on which was killed.
    return without({*CLOCK, "is_shared"}, facts)


HOME = object()
"""Stands for the learner in a verb's arguments."""


def _verb(folder: Path, points: "Points", *words: object) -> Facts:
    """Call a verb on a learner of three versions, and note what is left."""
    prepare()
    home = folder / "learner"
    if not home.exists():
        with points.looking_away():
            made = Path(shutil.copytree(_template(folder), folder / "copied", dirs_exist_ok=True))
            if "--discard" in words:
                ModelStore.open(made).begin(3, "0" * 64)
            made.rename(home)
    ran(*[home if word is HOME else word for word in words])
    with points.looking_away(), ModelStore.open(home).changing():
        pass  # Whoever writes next removes what is left over.
    pictures = [image.numpy().tobytes() for image in labelled({1: 10}).images.pixels]
    kept = {path.name: path.read_bytes() for path in sorted(home.rglob("*")) if path.is_file()}
    facts = {
        **_describe_home(home),
        "changes": [change.model_dump() for change in ModelStore.open(home).history()],
        "pictures of class 1": [n for n, own in kept.items() if any(p in own for p in pictures)],
    }
    return without(CLOCK, facts)


def _template(folder: Path) -> Path:
    """Return a learner of three versions, made once for all works beside this one."""
    place = folder.parent / "template"
    if not place.exists():
        beside = folder.parent / "unfinished"
        method = Replay.Settings(base=SHORT, update=SHORT)
        memory = MemorySettings(size=20, validation=2)
        made = Learner.create(settings(method, memory=memory), shape=(3, 8, 8), directory=beside)
        for counts in ({0: 10, 1: 10}, {2: 10}, {3: 10}):
            data = labelled(counts)
            made.update(data.images, class_names(data))
        beside.rename(place)
    return place


# --- Facts ----------------------------------------------------------------------------------------


def _describe_home(path: Path) -> Facts:
    """All that a learner's directory holds, and what it should not."""
    home = ModelStore.open(path)
    documents = home.survey().documents
    refs = [ref for document in documents for ref in document.refs]
    for ref in refs:
        home.read(ref, "it")  # It is there, and what its name says.
    used = {f"{ref.sha256}.safetensors" for ref in refs}
    return {
        "documents": [document.model_dump(mode="json") for document in documents],
        "current": home.current(),
        "unused objects": sorted({file.name for file in (path / "objects").iterdir()} - used),
        "pending": home.pending() is not None,
        "files": [name for name in _files(path) if not name.startswith("objects/")],
    }


def without(keys: Set[str], facts: Any) -> Any:
    """Leave out some keys, at any depth."""
    if isinstance(facts, Mapping):
        return {key: without(keys, value) for key, value in facts.items() if key not in keys}
    return [without(keys, item) for item in facts] if isinstance(facts, list | tuple) else facts


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))
