"""Run an experiment: a series of learner updates (scenario × method × seed) with its record."""

import hashlib
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from grace.base.atomic import remove_leftovers
from grace.base.files import inside
from grace.base.lock import exclusive
from grace.runs import (
    DatasetRecord,
    RecordWriter,
    RunInfo,
    RunProgress,
    RunRecord,
    SilentRun,
    TaskRecord,
    collect_versions,
    describe_run,
    fingerprints,
    refuse_occupied,
    run_directory,
)
from grace.runs.resuming import drop_checkpoint, noted_rounding, same_run
from grace.runs.task_line import compare_predictions, task_record
from grace.settings.effects import refuse_learner_settings
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import ConfigWarning, as_settings
from grace.settings.methods import AnyMethodSettings

# torch is imported where the work starts, so that planning runs and reading records is quick.
if TYPE_CHECKING:
    from grace.data.images import Dataset, LabelledImages
    from grace.data.scenario import Scenario, Task
    from grace.engine.ranks import Ranks
    from grace.learner.learner import Learner
    from grace.nn.preprocessing import Constants


def run_experiment(
    settings: ExperimentSettings,
    directory: Path | None = None,
    progress: RunProgress | None = None,
    *,
    dataset: "Dataset | None" = None,
    resume: bool = False,
    first_tasks: Path | None = None,
) -> RunRecord:
    """Run one experiment and write its record, task by task.

    During the run, the learner and its unfinished update are saved under ``checkpoint`` in the run
    directory, so that a killed run can go on.

    Several processes that torchrun started carry out the run together. The first one writes the
    record and sends events to ``progress``; all return the record.

    Args:
        settings: resolved settings.
        directory: run directory to create; ``None``: a new one under ``runs/``.
        progress: receives the events of the run.
        dataset: images to learn and test on, the same in every process; ``None``: those that
            ``settings.data`` names. Of ``settings.data`` only the augmentation is applied to given
            images. The fingerprints contain the images' digest in both cases.
        resume: go on with the same run if it was interrupted, in ``directory`` or, without one, the
            newest under ``runs/``; the record of a finished run is returned.
        first_tasks: folder in which runs with the same *first_task* fingerprint share the network
            of their first task; created if it does not exist. ``None``: do not share.

    Returns:
        The finished record.

    Raises:
        GraceError: for settings or data that cannot be used, a loss that is not finite (the record
            then contains the error), a directory that holds another run, or processes with
            different settings or data.
        BusyError: if another process carries out this run.
        PeerGoneError: if another process of torchrun has ended.
    """
    from grace.engine.ranks import Ranks

    refuse_learner_settings(settings)
    with Ranks.started(settings.engine) as ranks, warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)  # The record's notes contain these warnings.
        receiver = progress if progress and ranks.is_first else SilentRun()
        return _run(settings, directory, receiver, ranks, dataset, first_tasks, resume=resume)


def run(
    experiment: str | ExperimentSettings = "digits",
    overrides: Sequence[str] = (),
    *,
    directory: str | Path | None = None,
    dataset: "Dataset | None" = None,
    resume: bool = False,
    progress: RunProgress | None = None,
) -> RunRecord:
    """Run an experiment, given by its name, its file or its settings, and record it.

    Args:
        experiment: a packaged experiment, the path of a YAML file, or resolved settings.
        overrides: ``key.path=value`` texts over a named experiment.
        directory: run directory to create; ``None``: a new one under ``runs/``.
        dataset: images to learn and test on; ``None``: those that ``data`` names.
        resume: go on with the same run if it was interrupted.
        progress: receives the events of the run.

    Returns:
        The finished record; see :func:`run_experiment`.

    Raises:
        GraceError: for settings or data that cannot be used, or a directory that is taken.
    """
    return run_experiment(
        as_settings(experiment, overrides),
        None if directory is None else Path(directory),
        progress,
        dataset=dataset,
        resume=resume,
    )


def _run(
    settings: ExperimentSettings,
    directory: Path | None,
    progress: RunProgress,
    ranks: "Ranks",
    given: "Dataset | None",
    first_tasks: Path | None,
    *,
    resume: bool,
) -> RunRecord:
    import torch

    from grace.data.scenario import Scenario
    from grace.data.sources import load_dataset
    from grace.engine.agreement import refuse_other_data, refuse_other_settings
    from grace.learner.learner import Learner
    from grace.learner.model import Model

    settings = _here(settings)
    if ranks.are_several:
        refuse_other_settings(settings, collect_versions(), ranks)
    threads = torch.get_num_threads()
    with ranks.first_goes_ahead():
        dataset = given or load_dataset(settings.data)
    scenario = Scenario(dataset, settings.scenario, settings.seeds.class_order)
    shape = dataset.train.images.shape
    model = Model(settings, shape, *_constants(settings, dataset), progress, ranks=ranks)
    learner = Learner(model)
    try:
        model.check_memory(len(scenario.class_names))
        digest = _digest({"train": dataset.train, "test": dataset.test})
        if ranks.are_several:
            refuse_other_data(dataset, digest, settings.data.root, ranks)
        if not ranks.is_first:
            return _follow(learner, scenario, ranks)
        info = _describe(settings, dataset, digest, scenario, learner)
        earlier = same_run(directory, info) if resume else None
        place = earlier.directory if earlier else directory or run_directory(Path("runs"), info)
        if earlier is None:
            refuse_occupied(place)
        place.mkdir(parents=True, exist_ok=True)
        with exclusive(place / "lock", f"the run '{place}'"):
            remove_leftovers(place)
            # Read again: another process may have changed it meanwhile.
            earlier = same_run(place, info) if resume else None
            done = _finished(place, info, earlier, learner, scenario, first_tasks, progress)
            (place / "lock").unlink()  # The last thing: see ``exclusive``.
            return done
    finally:
        torch.set_num_threads(threads)  # engine.threads is valid for this run only


def _finished(
    place: Path,
    info: RunInfo,
    earlier: RunRecord | None,
    learner: "Learner",
    scenario: "Scenario",
    first_tasks: Path | None,
    progress: RunProgress,
) -> RunRecord:
    """Return the record of a run, which is carried out unless it is finished already."""
    ranks = learner.trainer.ranks
    if earlier is not None and earlier.complete:
        ranks.broadcast_value(None)  # There is nothing to learn.
        done = earlier
    else:
        if first_tasks is not None:
            learner.share_first_task(inside(first_tasks, info.fingerprints["first_task"]))
        if earlier is not None and earlier.tasks:
            info = noted_rounding(info, earlier.info)
        done = _carry_out(learner, scenario, RecordWriter(place, info, earlier), progress)
    drop_checkpoint(inside(place, "checkpoint"))
    _broadcast_record(done, ranks)
    return done


def identify(
    runs: Sequence[ExperimentSettings],
    *,
    dataset: "Dataset | None" = None,
    digests: dict[str, str] | None = None,
) -> list[Mapping[str, str]]:
    """Return the fingerprints of each run's record without carrying out the runs.

    The images are read and checked, shared ones once; each method is checked too: its device,
    backbone and memory.

    Args:
        runs: resolved settings.
        dataset: images of all runs; ``None``: those that their settings name.
        digests: of the images of earlier calls, which are not read again; those read now are added.

    Raises:
        GraceError: for data or settings that a run could not use.
    """
    from grace.data.scenario import Scenario
    from grace.data.sources import load_dataset
    from grace.learner.model import Model

    digests = {} if digests is None else digests
    known = set(digests)
    datasets: dict[str, Dataset] = {}
    found: list[Mapping[str, str]] = []
    tried: set[str] = set()
    versions = collect_versions()
    for settings in map(_here, runs):
        key = settings.data.model_dump_json()
        if key in known:
            found.append(fingerprints(settings, digests[key], versions))
            continue
        if key not in datasets:
            datasets[key] = dataset or load_dataset(settings.data)
            digests[key] = _digest({"train": datasets[key].train, "test": datasets[key].test})
        images = datasets[key]
        scenario = Scenario(images, settings.scenario, settings.seeds.class_order)
        if settings.method.name not in tried:
            tried.add(settings.method.name)
            shape = images.train.images.shape
            model = Model(settings, shape, *_constants(settings, images))
            model.check_memory(len(scenario.class_names))
        found.append(fingerprints(settings, digests[key], versions))
    return found


def _here(settings: ExperimentSettings) -> ExperimentSettings:
    """Replace the precision ``auto`` by what it means on this machine: it decides the results.

    So the record and its fingerprint say in which number format a run was computed.
    """
    from grace.engine.device import chosen_precision

    engine = settings.engine.model_copy(update={"precision": chosen_precision(settings.engine)})
    return settings.model_copy(update={"engine": engine})


def _constants(settings: ExperimentSettings, dataset: "Dataset") -> "Constants":
    """Return the normalisation constants: those of a pretrained backbone, else of the images."""
    from grace.nn.preprocessing import constants

    channels = dataset.train.images.shape[0]
    return constants(settings.backbone, channels, dataset.mean, dataset.std)


def _broadcast_record(record: RunRecord, ranks: "Ranks") -> None:
    tasks = [task.model_dump_json() for task in record.tasks]
    ranks.broadcast_value([str(record.directory), record.info.model_dump_json(), tasks])


def _follow(learner: "Learner", scenario: "Scenario", ranks: "Ranks") -> RunRecord:
    """Learn the same as the first process; return the record that it writes."""
    checkpoint = ranks.broadcast_value(None)
    if checkpoint is not None:
        learner.load_state(checkpoint)
        ranks.barrier()
        _learn_along(learner, scenario)
    place, info, lines = ranks.broadcast_value(None)
    tasks = tuple(TaskRecord.model_validate_json(line) for line in lines)
    return RunRecord(Path(place), RunInfo.model_validate_json(info), tasks)


def _learn_along(learner: "Learner", scenario: "Scenario") -> None:
    for task in scenario:
        if task.number > len(learner.history):
            learner.update(task.data.images, _names(scenario, task), is_last=task.is_last)
        elif learner.method.memory.keep_all:
            learner.recall(task.data.images, _names(scenario, task))


def _carry_out(
    learner: "Learner", scenario: "Scenario", record: RecordWriter, progress: RunProgress
) -> RunRecord:
    """Learn task after task; the work of an earlier process is not repeated."""
    from grace.engine.trainer import NonFiniteLossError

    checkpoint = inside(record.directory, "checkpoint")
    try:
        if not (checkpoint / "model.json").exists():
            drop_checkpoint(checkpoint)  # A process was killed while removing it.
        learner.live_in(checkpoint)
        if learner.history:
            learner.keep_versions(1)
        # Lines of tasks that the saved learner lacks are written again.
        record.keep_tasks(len(learner.history))
        # The checkpoint must not change before the other processes have read it.
        learner.trainer.ranks.broadcast_value(str(checkpoint.resolve()))
        learner.trainer.ranks.barrier()
        for task in scenario:
            names = scenario.class_names[task.num_old_outputs : task.num_classes]
            progress.task_started(task.number, len(scenario), names)
            if task.number <= len(learner.history) and learner.method.memory.keep_all:
                learner.recall(task.data.images, _names(scenario, task))
            if task.number <= len(record.record.tasks):
                done = record.record.tasks[task.number - 1]
            else:
                done = _learn_and_evaluate(learner, scenario, task)
                record.append_task(done)
                learner.keep_versions(1)
            progress.task_finished(done)
    except BaseException as error:
        record.fail(error)
        if isinstance(error, KeyboardInterrupt):
            error.add_note(f"the record of the tasks so far: {record.directory}")
        if isinstance(error, NonFiniteLossError):
            drop_checkpoint(checkpoint)  # Going on would fail in the same way.
        raise
    return record.finish()


def _names(scenario: "Scenario", task: "Task") -> list[str]:
    return [scenario.class_names[int(label)] for label in task.data.labels]


def _learn_and_evaluate(learner: "Learner", scenario: "Scenario", task: "Task") -> TaskRecord:
    """Update the learner with one task and test it; return the record's line."""
    # A task that was learnt and saved before a process was killed is recognised by its number: that
    # is enough, because the checkpoint belongs to this run, and no images are hashed.
    update = learner.update(
        task.data.images,
        _names(scenario, task),
        is_last=task.is_last,
        identity=f"task {task.number}",
    )
    task_sizes = scenario.task_sizes[: task.number]
    started = time.perf_counter()
    test = scenario.test_images(task.number)
    tested = compare_predictions(learner.scores(test.images), test.labels, task_sizes)
    return task_record(learner, update, task_sizes, tested, time.perf_counter() - started)


def _describe(
    settings: ExperimentSettings,
    dataset: "Dataset",
    digest: str,
    scenario: "Scenario",
    learner: "Learner",
) -> RunInfo:
    import torch

    device = learner.trainer.device.torch_device
    return describe_run(
        settings,
        class_names=scenario.class_names,
        task_sizes=scenario.task_sizes,
        dataset=DatasetRecord(
            name=dataset.name,
            num_train=len(dataset.train),
            num_test=len(dataset.test),
            shape=dataset.train.images.shape,
        ),
        data_digest=digest,
        device=device.type,
        threads=torch.get_num_threads(),
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        processes=learner.trainer.ranks.num_processes,
        notes=[*dataset.notes, *_lone_classes(settings.method, scenario.task_sizes)],
    )


def _lone_classes(method: AnyMethodSettings, task_sizes: Sequence[int]) -> Iterator[str]:
    """Yield a note about the tasks with a class that the method cannot learn."""
    sizes = enumerate(task_sizes, start=1)
    tasks = [str(number) for number, size in sizes if method.traits.leaves_lone_class(number, size)]
    if tasks:
        yield (
            f"{method.name} compares new classes with each other only: a task's one new class is "
            f"not learnt (task {', '.join(tasks)})"
        )


def _digest(parts: "Mapping[str, LabelledImages]") -> str:
    """Return the hash of names, labels and images (N, C, H, W) of a dataset's parts."""
    digest = hashlib.sha256()
    for name, part in parts.items():
        digest.update(name.encode())
        digest.update(part.labels.numpy().tobytes())
        digest.update(part.images.digest())
    return digest.hexdigest()
