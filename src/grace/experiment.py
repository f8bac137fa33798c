"""An experiment: scenario × method × seed, a scripted series of learner updates → a record."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grace.configs.experiment import ExperimentSettings
from grace.learner import metrics
from grace.record import (
    DatasetRecord,
    RecordWriter,
    RunInfo,
    RunRecord,
    describe_run,
    run_directory,
)

# torch is imported where the work starts, so that what only plans or reads records is quick.
if TYPE_CHECKING:
    from grace.data.images import Dataset, LabelledImages
    from grace.data.scenario import Scenario, Task
    from grace.engine.progress import Progress
    from grace.learner.document import Update
    from grace.learner.learner import Learner


def run_experiment(
    settings: ExperimentSettings,
    directory: Path | None = None,
    progress: "Progress | None" = None,
) -> RunRecord:
    """Run one experiment and write its record, task by task.

    Args:
        settings: resolved settings.
        directory: run directory to create; none makes a new one under ``runs/``.
        progress: told what happens.

    Returns:
        The finished record.

    Raises:
        ValueError: for settings that cannot be carried out, bad data, or a loss that is not
            finite; a record that was begun then says that it failed, and why.
    """
    import torch

    from grace.data.scenario import Scenario
    from grace.data.sources import load_dataset
    from grace.engine.progress import Silence
    from grace.learner.learner import Learner

    told = progress or Silence()
    threads = torch.get_num_threads()
    dataset = load_dataset(settings.data)
    scenario = Scenario(dataset, settings.scenario, settings.seeds.class_order)
    learner = Learner(settings, dataset.train.images.shape, dataset.mean, dataset.std, told)
    learner.check_memory(len(scenario.class_names))
    info = _describe(settings, dataset, scenario, learner)
    record = RecordWriter(directory or run_directory(Path("runs"), info), info)
    try:
        for task in scenario:
            names = scenario.class_names[task.num_old_classes : task.num_classes]
            told.task_started(task.number, len(scenario), names)
            line = _learn_and_evaluate(learner, scenario, task)
            record.append_task(line)
            told.task_finished(line)
    except BaseException as error:
        record.fail(error)
        raise
    finally:
        torch.set_num_threads(threads)  # engine.threads holds for this run alone
    return record.finish()


def _learn_and_evaluate(learner: "Learner", scenario: "Scenario", task: "Task") -> dict[str, Any]:
    """Update the learner with one task and test it; return the record's line."""
    clock = time.perf_counter
    started = clock()
    labels = [scenario.class_names[int(label)] for label in task.data.labels]
    update = learner.update(task.data.images, labels, is_last=task.is_last)
    learnt = clock()
    sizes = scenario.task_sizes[: task.number]
    tested = _test(learner, scenario.test_images(task.number), sizes)
    ended = clock()
    seconds = {"learn": learnt - started, "evaluate": ended - learnt, "total": ended - started}
    return {**_describe_update(learner, update, sizes), **tested, "seconds": seconds}


def _test(learner: "Learner", test: "LabelledImages", task_sizes: Sequence[int]) -> dict[str, Any]:
    """Accuracy of every predictor on all seen classes, and the primary one's confusion."""
    labels, num_old = test.labels.tolist(), sum(task_sizes[:-1])
    confusions = {
        name: metrics.confusion_matrix(labels, scores.argmax(dim=1).tolist(), sum(task_sizes))
        for name, scores in learner.scores(test.images).items()
    }
    primary = next(iter(confusions), None)
    return {
        "classifiers": {
            name: _accuracies(confusion, task_sizes, num_old)
            for name, confusion in confusions.items()
        },
        "primary": primary,
        "confusion": confusions[primary] if primary else None,
    }


def _accuracies(
    confusion: list[list[int]], task_sizes: Sequence[int], num_old: int
) -> dict[str, Any]:
    old, new = metrics.old_new_accuracy(confusion, num_old)
    return {
        "all": metrics.overall_accuracy(confusion),
        "old": old,
        "new": new,
        "per_task": metrics.per_task_accuracy(confusion, task_sizes),
    }


def _describe_update(
    learner: "Learner", update: "Update", task_sizes: Sequence[int]
) -> dict[str, Any]:
    size, memory = learner.size(), learner.method.memory
    return {
        "task": update.task,
        "num_new": len(update.new_class_names),
        "num_seen": sum(task_sizes),
        "class_names_new": list(update.new_class_names),
        **asdict(update.outcome),
        "backbones": size.num_backbones,
        "parameters": {
            "backbones": size.backbone_parameters,
            "heads": size.head_parameters,
            "total": size.backbone_parameters + size.head_parameters,
        },
        "bytes": {"weights": size.weight_bytes, "exemplars": memory.num_bytes},
        "num_exemplars": len(memory),
        "phases": [
            {
                "name": work.name,
                "epochs": work.epochs,
                "images": work.images,
                "seconds": work.seconds.total,
                "losses": work.losses,
            }
            for work in update.work
        ],
    }


def _describe(
    settings: ExperimentSettings, dataset: "Dataset", scenario: "Scenario", learner: "Learner"
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
        data_digest=_digest({"train": dataset.train, "test": dataset.test}),
        device=device.type,
        threads=torch.get_num_threads(),
        gpu=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
        notes=dataset.notes,
    )


def _digest(parts: "Mapping[str, LabelledImages]") -> str:
    """Hash names, labels and images of a dataset's parts."""
    digest = hashlib.sha256()
    for name, part in parts.items():
        digest.update(name.encode())
        digest.update(part.labels.numpy().tobytes())
        digest.update(part.images.digest())
    return digest.hexdigest()
