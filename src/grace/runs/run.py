"""Run an experiment (scenario × method × seed): its tasks one after another, with a record.

Nothing here is of a product: a run has no versions, no gate and no ceiling.
"""

import hashlib
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, final

from grace.base.atomic import remove_leftovers, write_bytes
from grace.base.files import inside
from grace.base.lock import exclusive
from grace.data.sources import load_dataset, refuse_missing
from grace.engine.progress import Progress
from grace.runs.model import DatasetRecord, RunInfo, RunRecord, TaskRecord
from grace.runs.provenance import collect_hardware, collect_versions, commit, fingerprints
from grace.runs.record import (
    STATE,
    RecordWriter,
    drop_checkpoint,
    noted_rounding,
    now,
    refuse_occupied,
    run_directory,
    same_run,
)
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import ConfigWarning, load_experiment
from grace.settings.problems import refuse_learner_settings

# torch is imported where the work starts, so that planning runs and reading records is quick.
if TYPE_CHECKING:
    from grace.data.images import Dataset
    from grace.engine.journal import Journal
    from grace.engine.ranks import Ranks
    from grace.runs.stream import Stream


class RunProgress(Progress, Protocol):
    """Receives the events of a run, those of its phases and sweeps included."""

    def task_started(self, number: int, total: int, class_names: Sequence[str]) -> None:
        """Called when a task begins.

        Args:
            number: number of the task, from 1.
            total: number of tasks of the run.
            class_names: names of the task's new classes.
        """
        return

    def task_finished(self, task: TaskRecord) -> None:
        """Called when a task is finished, with its line of the record."""
        return


@final
class SilentRun(RunProgress):
    """Ignores every event of a run."""


def run(
    experiment: str | ExperimentSettings = "digits",
    overrides: Sequence[str] = (),
    *,
    directory: str | Path | None = None,
    dataset: "Dataset | None" = None,
    resume: bool = False,
    keep: bool = False,
    progress: RunProgress | None = None,
    first_tasks: Path | None = None,
) -> RunRecord:
    """Run an experiment, given by its name, its file or its settings, and record it task by task.

    A killed run can go on from the ``checkpoint`` in its directory. Several processes that torchrun
    started carry out a run together: the first one writes and sends events; all return the record.

    Args:
        experiment: a packaged experiment, the path of a YAML file, or resolved settings.
        overrides: ``key.path=value`` texts over a named experiment.
        directory: run directory to create; ``None``: a new one under ``runs/``.
        dataset: images to learn and test on; ``None``: those that ``data`` names. Of ``data`` only
            the augmentation is applied to given images.
        resume: go on with the same run: that in ``directory``, or the newest under ``runs/``.
        keep: keep the method's state in the directory, for ``Learner.from_run``.
        progress: receives the events of the run.
        first_tasks: folder in which runs with the same *first_task* fingerprint share the network
            of their first task; created if it does not exist. ``None``: do not share.

    Raises:
        GraceError: for settings or data that cannot be used, a loss that is not finite, a directory
            that holds another run, processes that differ or have ended, or a run in progress.
    """
    settings = load_experiment(experiment, overrides)
    refuse_learner_settings(settings)
    from grace.engine.ranks import Ranks

    given = None if directory is None else Path(directory)
    with Ranks.started(settings.engine) as ranks, _own_warnings_and_threads():
        receiver = progress if progress and ranks.is_first else SilentRun()
        stream, info = _begun(_here(settings), dataset, receiver, ranks)
        if not ranks.is_first:
            return _follow(stream)
        earlier = same_run(given, info) if resume else None
        place = earlier.directory if earlier else given or run_directory(Path("runs"), info)
        if earlier is None:
            refuse_occupied(place)
        place.mkdir(parents=True, exist_ok=True)
        with exclusive(place / "lock", f"the run '{place}'"):
            remove_leftovers(place)
            earlier = same_run(place, info) if resume else None  # It may have changed meanwhile.
            if earlier is not None and earlier.complete:
                ranks.broadcast_value(None)  # There is nothing to learn.
                done = earlier
            else:
                record = RecordWriter(place, noted_rounding(info, earlier), earlier)
                done = _carry_out(stream, record, receiver, first_tasks, keep=keep)
            drop_checkpoint(inside(place, "checkpoint"))
            _tell_others(done, ranks)
            (place / "lock").unlink()  # The last thing: see ``exclusive``.
        return done


def identify(
    runs: Sequence[ExperimentSettings], digests: dict[str, str]
) -> list[Mapping[str, str]]:
    """Return the fingerprints of each run's record without carrying out the runs.

    The images are read and checked, shared ones once; each method is checked too: its device,
    backbone and memory.

    Args:
        runs: resolved settings.
        digests: of the images of earlier calls, which are not read again; those read now are added.

    Raises:
        GraceError: for data or settings that a run could not use.
    """
    for settings in runs:
        refuse_missing(settings)
    from grace.engine.ranks import Ranks
    from grace.runs.stream import Stream

    known = set(digests)
    datasets: dict[str, Dataset] = {}
    found: list[Mapping[str, str]] = []
    tried: set[str] = set()
    versions = collect_versions()
    for settings in map(_here, runs):
        key = settings.data.model_dump_json()
        if key not in known:
            if key not in datasets:
                datasets[key] = load_dataset(settings.data)
                digests[key] = _digest(datasets[key])
            if settings.method.name not in tried:
                tried.add(settings.method.name)
                Stream(settings, datasets[key], SilentRun(), Ranks())
        found.append(fingerprints(settings, digests[key], versions))
    return found


@contextmanager
def _own_warnings_and_threads() -> Iterator[None]:
    """Keep quiet about what the record's notes say; put back torch's number of threads."""
    import torch

    threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConfigWarning)
            yield
    finally:
        torch.set_num_threads(threads)  # engine.threads is valid for this run only


def _here(settings: ExperimentSettings) -> ExperimentSettings:
    """Replace the precision ``auto`` by what it means on this machine: it decides the results.

    So the record and its fingerprint say in which number format a run was computed.
    """
    from grace.engine.device import chosen_precision

    engine = settings.engine.model_copy(update={"precision": chosen_precision(settings.engine)})
    return settings.model_copy(update={"engine": engine})


def _begun(
    settings: ExperimentSettings, given: "Dataset | None", progress: RunProgress, ranks: "Ranks"
) -> "tuple[Stream, RunInfo]":
    """Read the images and build the method; return also the facts about the run."""
    from grace.runs.stream import Stream

    config = settings.model_dump(mode="json")
    for section, name in (("data", "root"), ("data", "streaming"), ("engine", "threads")):
        config[section].pop(name)  # These may differ between machines.
    ranks.refuse_unequal({"settings": config, "packages": collect_versions()})
    with ranks.first_goes_ahead():
        dataset = given or load_dataset(settings.data)
    stream = Stream(settings, dataset, progress, ranks)
    digest = _digest(dataset)
    ranks.refuse_unequal({"images": digest})
    return stream, _described(stream, dataset, digest)


def _described(stream: "Stream", dataset: "Dataset", digest: str) -> RunInfo:
    """Collect the facts about a run at its start."""
    import torch

    settings, scenario, versions = stream.settings, stream.scenario, collect_versions()
    device = stream.trainer.device.torch_device
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    notes, sizes = list(dataset.notes), enumerate(scenario.task_sizes, start=1)
    traits = settings.method.traits
    lone = ", ".join(str(n) for n, size in sizes if traits.leaves_lone_class(n, size))
    if lone:
        notes.append(
            f"{settings.method.name} compares new classes with each other only: a task's one new "
            f"class is not learnt (task {lone})"
        )
    return RunInfo(
        experiment=settings.name,
        description=settings.description,
        config=settings.model_dump(mode="json"),
        versions=versions,
        commit=commit(),
        hardware=collect_hardware(
            device.type, torch.get_num_threads(), gpu, stream.ranks.num_processes
        ),
        fingerprints=fingerprints(settings, digest, versions),
        started=now(),
        class_names=tuple(scenario.class_names),
        task_sizes=tuple(scenario.task_sizes),
        notes=tuple(notes),
        dataset=DatasetRecord(
            name=dataset.name,
            num_train=len(dataset.train),
            num_test=len(dataset.test),
            shape=stream.shape,
        ),
    )


def _digest(dataset: "Dataset") -> str:
    """Return the hash of names, labels and images (N, C, H, W) of a dataset's parts."""
    digest = hashlib.sha256()
    for name, part in (("train", dataset.train), ("test", dataset.test)):
        digest.update(name.encode())
        digest.update(part.labels.numpy().tobytes())
        digest.update(part.images.digest())
    return digest.hexdigest()


def _carry_out(
    stream: "Stream",
    record: RecordWriter,
    progress: RunProgress,
    first_tasks: Path | None,
    *,
    keep: bool,
) -> RunRecord:
    """Learn task after task; the work of an earlier process is not repeated."""
    from grace.engine.loss_meter import NonFiniteLossError

    place, scenario = record.record.directory, stream.scenario
    checkpoint = inside(place, "checkpoint")
    shared = first_tasks and inside(first_tasks, record.record.info.fingerprints["first_task"])
    try:
        checkpoint.mkdir(exist_ok=True)
        remove_leftovers(checkpoint)
        stream.load(inside(checkpoint, STATE))
        for task in scenario:
            names = scenario.class_names[task.num_old_outputs : task.num_classes]
            progress.task_started(task.number, len(scenario), names)
            if task.number <= len(stream.learnt):
                stream.recall(task)
                done = record.record.tasks[task.number - 1]
            else:
                journal = _journal(checkpoint, task.number)
                if shared and task.number == 1:
                    journal.share(shared, stream.trainer)
                done = stream.test(task, *stream.learn(task, journal))
                record.append_task(done)
                write_bytes(checkpoint / STATE, stream.encoded())
            progress.task_finished(done)
        if keep:
            write_bytes(inside(place, STATE), stream.encoded())
    except BaseException as error:
        record.fail(error)
        if isinstance(error, KeyboardInterrupt):
            error.add_note(f"the record of the tasks so far: {place}")
        if isinstance(error, NonFiniteLossError):
            drop_checkpoint(checkpoint)  # Going on would fail in the same way.
        raise
    return record.finish()


def _journal(checkpoint: Path, number: int) -> "Journal":
    """Open the journal of a task, the only one that is kept."""
    from grace.engine.journal import Journal

    folder = inside(checkpoint, f"task-{number:04d}")
    for earlier in set(checkpoint.glob("task-*")) - {folder}:
        shutil.rmtree(earlier, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    remove_leftovers(folder)
    return Journal(folder)


def _tell_others(done: RunRecord, ranks: "Ranks") -> None:
    lines = [task.model_dump_json() for task in done.tasks]
    ranks.broadcast_value([str(done.directory), done.info.model_dump_json(), lines])


def _follow(stream: "Stream") -> RunRecord:
    """Learn the same as the first process; return the record that it writes."""
    saved = stream.ranks.broadcast_value(None)
    if saved is not None:
        stream.follow(saved)
    place, info, lines = stream.ranks.broadcast_value(None)
    tasks = tuple(TaskRecord.model_validate_json(line) for line in lines)
    return RunRecord(Path(place), RunInfo.model_validate_json(info), tasks)
