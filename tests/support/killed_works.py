"""Works for ``kills``: a whole run, and a learner that lives through all that can happen to one.

Each can be called again and again in one folder, by processes that go on where others were killed.
What is compared leaves out what the clock says, and nothing else.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, final
from unittest import mock

import torch
import torch._dynamo  # so that it is there before the first fork

import grace.methods.module_factory
import grace.nn.expandable
import grace.runs.run
from grace.cli.app import app
from grace.cli.ask import export as _export_verb
from grace.cli.compare import compare as _compare_verb
from grace.cli.study import study as _study_verb
from grace.cli.versions import forget as _forget_verb
from grace.cli.versions import prune as _prune_verb
from grace.cli.versions import rollback as _rollback_verb
from grace.cli.versions import set_settings as _set_verb
from grace.engine.checkpoint import Snapshot
from grace.engine.journal import Journal
from grace.engine.phase import Phase
from grace.learner.call import drop_update
from grace.learner.document import Document
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.grace import Grace
from grace.methods.joint import Joint
from grace.methods.replay import Replay
from grace.runs.run import run as run_experiment
from grace.settings.experiment import MemorySettings, ScenarioSettings
from support import kills, tiny_streams
from support.tiny_streams import class_names, labelled, recipe, settings

CLOCK = {"seconds", "earlier", "date", "created", "started", "finished"}


SHORT = recipe(2, batch_size=8)


def run(folder: Path) -> None:
    """A run of three tasks: base, grow, compress with two backbones."""
    _run(folder, Grace.Settings(base=SHORT, grow=SHORT, compress=SHORT, expand_at=(2,)))


def joint_run(folder: Path) -> None:
    """A run of the method that keeps every image, but none in its state."""
    _run(folder, Joint.Settings(base=SHORT))


def _run(folder: Path, method: Any) -> None:
    _prepare()
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
    kills.note(folder / "facts.json", timeless(facts))


def forgetful_run(folder: Path) -> None:
    """The first run, but whoever goes on within a phase forgets the optimiser's momenta."""
    saved_phase = Journal.saved_phase

    def without_momenta(journal: Journal, number: int, phase: Phase) -> Snapshot | None:
        saved = saved_phase(journal, number, phase)
        for name, tensor in saved.tensors.items() if saved else ():
            if name.startswith("optimiser/"):
                tensor.zero_()
        return saved

    Journal.saved_phase = without_momenta  # type: ignore[method-assign]
    run(folder)


def learner(folder: Path) -> None:
    """A learner under a ceiling: made, taught, taught again, refused, made to forget, revived."""
    _prepare()
    home = folder / "learner"
    if (home / "model.json").exists():
        made = Learner.load(home)
    else:
        short = recipe(2, lr=0.1, batch_size=16)
        method = Grace.Settings(base=short, grow=short, compress=short, expand_at=(3,))
        memory = MemorySettings(size=None, validation=2, max_mb=0.65)
        made = Learner.create(settings(method, memory=memory), shape=(3, 8, 8), directory=home)
    for number, step in enumerate(STEPS, start=1):
        if number > kills.marked(folder):
            step(made)
            kills.mark(folder, number)
    asked = labelled(dict.fromkeys(range(4), 4), seed=8).images
    facts = {
        **_describe_home(home),
        "scores": {name: _digest(scores) for name, scores in made.scores(asked).items()},
        "predictions": made.predict(asked),
        "files": [name for name in _files(home) if not name.startswith("objects/")],
    }
    kills.note(folder / "facts.json", timeless(facts))


def encoded_learner(folder: Path) -> None:
    """A learner whose exemplars are WebP files: taught, taught again, made to forget, revived."""
    _prepare()
    home = folder / "learner"
    if (home / "model.json").exists():
        made = Learner.load(home)
    else:
        method = Replay.Settings(base=recipe(), update=recipe())
        memory = MemorySettings(format="webp", size=None, max_mb=0.45, validation=2)
        made = Learner.create(settings(method, memory=memory), shape=(3, 32, 32), directory=home)
    for number, classes in enumerate(((0, 1), (1, 2), (), (0, 3)), start=1):
        if number <= kills.marked(folder):
            continue
        if classes:
            data = labelled(dict.fromkeys(classes, 10), seed=number)
            pixels = torch.nn.functional.interpolate(data.images.gather(torch.arange(20)), 32)
            made.update(pixels, class_names(data))
        elif 0 not in made.forgotten:
            made.forget("class 0")
        kills.mark(folder, number)
    facts = {
        **_describe_home(home),
        "files": [name for name in _files(home) if not name.startswith("objects/")],
        "encoded": [
            sorted(m.read(r, "it"))
            for m in [ModelStore.open(home)]
            for r in m.document(m.numbers()[-1]).exemplars.values()
        ],
    }
    kills.note(folder / "facts.json", timeless(facts))


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


def _forget(learner: Learner) -> None:
    if 1 not in learner.forgotten:
        learner.forget("class 1")


def _revive(learner: Learner) -> None:
    data = labelled({1: 8, 3: 10})
    learner.update(data.images, class_names(data), max_drop=100)


STEPS: tuple[Callable[[Learner], None], ...] = (_first, _again, _grow, _refused, _forget, _revive)


# --- Verbs of the command line, on a learner of three versions -----------------------------------


def forget(folder: Path) -> None:
    """``grace forget`` of a class that every version knows."""
    _verb(folder, lambda home: _forget_verb(home, "class 1", yes=True))


def prune(folder: Path) -> None:
    """``grace prune`` down to the newest version."""
    _verb(folder, lambda home: _prune_verb(home, keep=1))


def rollback(folder: Path) -> None:
    """``grace rollback`` to the first version."""
    _verb(folder, lambda home: _rollback_verb(home, 1))


def set_memory(folder: Path) -> None:
    """``grace set`` of a smaller memory, which drops exemplars and held-out images."""
    texts = ["memory.size=8", "memory.validation=1", "memory.max_mb=2"]
    _verb(folder, lambda home: _set_verb(home, texts))


def discard(folder: Path) -> None:
    """``grace learn --discard`` of an update that was interrupted."""
    _verb(folder, drop_update, begin=lambda store: store.begin(3, "0" * 64))


def export(folder: Path) -> None:
    """``grace export``, which changes nothing in the learner."""
    out = folder / "model.onnx"
    _verb(folder, lambda home: _export_verb(home, out=out, force=True), made=[out])


def compare(folder: Path) -> None:
    """``grace compare`` of two methods that share their first task; its runs are not killed."""
    given = {"methods": "replay,wa", "seeds": "1", "jobs": 1, "out": folder / "out"}
    _many_runs(folder, lambda: _compare_verb(["digits", *short_runs("replay", "wa")], **given))


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


def study(folder: Path) -> None:
    """``grace study`` with a run that waits for another one; its runs are not killed."""
    (folder / "mine.yaml").write_text(STUDY)
    arguments = [str(folder / "mine.yaml"), *short_runs("der", "replay")]
    _many_runs(folder, lambda: _study_verb(arguments, jobs=1, out=folder / "out"))


def short_runs(*methods: str) -> list[str]:
    """Settings for runs of two tasks on few digits, one epoch for each phase of some methods."""
    few = ("data.max_train_per_class=4", "scenario.base=4", "scenario.increment=6")
    phases = {"der": ("base", "grow")}
    return [
        *few,
        *(f"methods.{m}.{p}.epochs=1" for m in methods for p in phases.get(m, ("base", "update"))),
    ]


def _many_runs(folder: Path, verb: Callable[[], object]) -> None:
    """Carry out a verb whose runs are forks of this process; note their results and its files."""
    _prepare()
    forking = SimpleNamespace(
        Popen=_ForkedRun, PIPE=-1, STDOUT=-2, TimeoutExpired=subprocess.TimeoutExpired
    )
    with mock.patch("grace.studies.workers.subprocess", forking):
        verb()
    runs = sorted((folder / "out" / "runs").iterdir())
    facts = {
        "tasks": [[json.loads(line) for line in (run / "tasks.jsonl").open()] for run in runs],
        "files": [name for name in _files(folder / "out") if not name.startswith("first-tasks/")],
    }
    # Which run trained a first task that several share depends on which was killed.
    kills.note(folder / "facts.json", without({*CLOCK, "is_shared"}, facts))


@final
class _ForkedRun:
    """A run of a comparison in a fork of this process, which has imported all that it needs."""

    def __init__(self, command: Sequence[str], *, stdout: Any, env: Any, **_: Any) -> None:
        reads, writes = os.pipe()
        self.returncode: int | None = None
        self._pid = os.fork()
        if self._pid == 0:
            for place, handle in enumerate((reads, stdout.fileno(), stdout.fileno())):
                os.dup2(handle, place)
            _close_pipes()
            os.environ.update(env)
            with kills.looking_away():
                os._exit(_end_of(command[4:]))
        os.close(reads)
        self.stdin = os.fdopen(writes, "wb")

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float = 0) -> None:
        time.sleep(0.01)


def _end_of(arguments: Sequence[str]) -> int:
    """Carry out a command line; return its exit status."""
    try:
        app(arguments, standalone_mode=False)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
    return 0


def _close_pipes() -> None:
    """Close the pipes of a forked process: who waits for its parent's end reads one of them."""
    for handle in list(Path("/proc/self/fd").iterdir()):
        with suppress(OSError):
            if int(handle.name) > 2 and str(handle.readlink()).startswith("pipe:"):
                os.close(int(handle.name))


def _verb(
    folder: Path,
    call: Callable[[Path], object],
    begin: Callable[[ModelStore], object] | None = None,
    made: Sequence[Path] = (),
) -> None:
    """Call a verb on a copy of the learner, and note what is left."""
    _prepare()
    home = folder / "learner"
    if not home.exists():
        with kills.looking_away():
            shutil.rmtree(home.with_name("copied"), ignore_errors=True)
            shutil.copytree(_template(), home.with_name("copied"))
            if begin is not None:
                store = ModelStore.open(home.with_name("copied"))
                begin(store)
            home.with_name("copied").rename(home)
    call(home)
    pictures = tiny_streams.labelled({1: 10}).images.pixels
    with kills.looking_away(), ModelStore.open(home).changing():
        pass  # Whoever writes next removes what is left over.
    facts = {
        **_describe_home(home),
        "changes": [change.model_dump() for change in ModelStore.open(home).history()],
        "pictures of class 1": _holders(home, pictures),
        "files": [name for name in _files(home) if not name.startswith("objects/")],
        "made": [hashlib.sha256(path.read_bytes()).hexdigest() for path in made],
    }
    kills.note(folder / "facts.json", timeless(facts))


def _template() -> Path:
    """Return a learner of three versions, made once for all processes of a server."""
    place = kills.common_folder() / "learner"
    if not place.exists():
        beside = place.with_name("unfinished")
        shutil.rmtree(beside, ignore_errors=True)
        method = Replay.Settings(base=SHORT, update=SHORT)
        memory = MemorySettings(size=20, validation=2)
        made = Learner.create(settings(method, memory=memory), shape=(3, 8, 8), directory=beside)
        for counts in ({0: 10, 1: 10}, {2: 10}, {3: 10}):
            data = labelled(counts)
            made.update(data.images, class_names(data))
        beside.rename(place)
    return place


def _holders(home: Path, images: torch.Tensor) -> list[str]:
    """Name the files below a home that hold any of these images (N, C, H, W)."""
    wanted = [image.numpy().tobytes() for image in images]
    files = [path for path in sorted(home.rglob("*")) if path.is_file()]
    return [path.name for path in files if any(w in path.read_bytes() for w in wanted)]


def _prepare() -> None:
    """Make work quick and moments dense: a small network, a snapshot after every epoch."""
    torch.set_num_threads(1)
    grace.methods.module_factory.build_backbone = tiny_streams._resnet8
    grace.nn.expandable._conv_norm_pairs = tiny_streams.pairs_to_fold
    torch.nn.Module.__deepcopy__ = tiny_streams.copied_module  # type: ignore[attr-defined]
    Journal.__init__.__defaults__ = (0.0, 0.0)
    grace.runs.run.commit = lambda: None  # no processes of git's


def _describe_home(path: Path) -> dict[str, Any]:
    """All that a learner's directory holds, and what it should not."""
    home = ModelStore.open(path)
    documents = home.documents()
    refs = {name: ref for document in documents for name, ref in _objects(document).items()}
    for name, ref in refs.items():
        home.read(ref, name)  # It is there, and what its name says.
    used = {f"{ref.sha256}.safetensors" for ref in refs.values()}
    objects = {file.name for file in (path / "objects").iterdir()}
    return {
        "documents": [document.model_dump(mode="json") for document in documents],
        "current": home.current(),
        "unused objects": sorted(objects - used),
        "pending": home.pending() is not None,
    }


def _objects(document: Document) -> Mapping[str, Any]:
    return {f"{document.number}: {place}": ref for place, ref in enumerate(document.refs)}


def timeless(facts: Any) -> Any:
    """Leave out what the clock says."""
    return without(CLOCK, facts)


def without(keys: Set[str], facts: Any) -> Any:
    """Leave out some keys, at any depth."""
    if isinstance(facts, Mapping):
        return {key: without(keys, value) for key, value in facts.items() if key not in keys}
    return [without(keys, item) for item in facts] if isinstance(facts, list | tuple) else facts


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()
