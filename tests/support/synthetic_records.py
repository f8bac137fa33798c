"""Synthetic records of runs that never happened."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from grace.runs.model import DatasetRecord, RunInfo, RunRecord, TaskRecord
from grace.runs.provenance import fingerprints
from grace.runs.record import RecordWriter, run_directory
from grace.settings.load import load_experiment

MakeRecord = Callable[..., RunRecord]
ONE_BACKBONE = 269_000


def synthetic_line(
    task: int,
    sizes: Sequence[int],
    method: str,
    draw: random.Random,
    verdict: str | None,
    backbones: int,
    confusion: list[list[int]] | None,
    *,
    task_aware: bool,
) -> dict[str, Any]:
    """One plausible line of tasks.jsonl."""
    seen, new = sum(sizes[:task]), sizes[task - 1]
    accuracies: dict[str, Any] = {}
    if confusion is not None:
        starts = [sum(sizes[:number]) for number in range(task)]
        tasks = [range(start, start + size) for start, size in zip(starts, sizes, strict=False)]
        accuracies["linear"] = {
            "all": percent(confusion, range(seen)),
            "old": percent(confusion, range(seen - new)) if task > 1 else None,
            "new": percent(confusion, range(seen - new, seen)),
            "per_task": [percent(confusion, own) for own in tasks],
        }
        if task_aware:
            accuracies["linear"]["task_aware"] = {"all": 99.0, "per_task": [99.0] * task}
        if method != "finetune":
            accuracies["nearest_mean"] = accuracies["linear"] | {"all": 50.0}
    grace = method == "grace"
    heads = seen * (64 * backbones + 1)
    return {
        "task": task,
        "num_new": new,
        "num_seen": seen,
        "class_names_new": [f"class {index}" for index in range(seen - new, seen)],
        "classifiers": accuracies,
        "primary": "linear" if accuracies else None,
        "confusion": confusion,
        "saturation": draw.uniform(0.4, 0.7) if grace else None,
        "threshold": 0.6 * 0.96**task if grace else None,
        "verdict": verdict,
        "merge_weight": 0.6414 if verdict == "compress" else None,
        "backbones": backbones,
        "parameters": {
            "backbones": backbones * ONE_BACKBONE,
            "heads": heads,
            "total": backbones * ONE_BACKBONE + heads,
        },
        "bytes": {"weights": 4 * (backbones * ONE_BACKBONE + heads), "exemplars": 6400},
        "num_exemplars": 100,
        "phases": [
            {"name": "base", "epochs": 2, "images": 300, "seconds": 1.5, "losses": {"ce": 0.1}}
        ],
        "seconds": {"learn": 1.5, "evaluate": 0.25, "total": 1.75},
    }


def synthetic_confusion(
    sizes: Sequence[int], task: int, skill: float, draw: random.Random
) -> list[list[int]]:
    """Counts of 20 test images per class, the older classes forgotten more."""
    seen = sum(sizes[:task])
    counts = [[0] * seen for _ in range(seen)]
    for true in range(seen):
        keeps = skill - 0.25 * (1 - true / seen)
        for _ in range(20):
            counts[true][true if draw.random() < keeps else draw.randrange(seen)] += 1
    return counts


def percent(confusion: list[list[int]], classes: Sequence[int]) -> float:
    """The right answers among the test images of some classes."""
    total = sum(sum(confusion[index]) for index in classes)
    return 100 * sum(confusion[index][index] for index in classes) / total


@pytest.fixture
def make_record(tmp_path: Path) -> MakeRecord:
    """Return a factory of run directories under ``tmp_path / "runs"``.

    Keywords: ``method``, ``seed``, ``experiment``, ``task_sizes``, ``class_names``, ``overrides``,
    ``done`` (tasks written), ``status``, ``error``, ``evaluated`` (tasks with accuracies),
    ``verdicts`` (of all tasks; none draws them), ``task_aware`` (whether it was measured).
    """
    return record_maker(tmp_path)


def record_maker(tmp_path: Path) -> MakeRecord:
    """Return the factory of ``make_record`` for a folder."""

    def make(
        method: str = "grace",
        seed: int = 1,
        *,
        experiment: str = "digits",
        task_sizes: Sequence[int] = (2, 2, 2, 2, 2),
        class_names: Sequence[str] | None = None,
        overrides: Sequence[str] = (),
        done: int | None = None,
        status: str = "finished",
        error: str | None = None,
        evaluated: Sequence[int] | None = None,
        verdicts: Sequence[str] | None = None,
        task_aware: bool = True,
    ) -> RunRecord:
        settings = load_experiment(experiment, [f"method={method}", f"seed={seed}", *overrides])
        names = class_names or [f"class {index}" for index in range(sum(task_sizes))]
        versions = {"grace": "0.1.0", "python": "3.11", "torch": "2.15"}
        info = RunInfo(
            experiment=settings.name,
            description=settings.description,
            config=settings.model_dump(mode="json"),
            versions=versions,
            hardware={"cpu": "imaginary", "cores": 2, "device": "cpu", "gpu": None},
            fingerprints=fingerprints(settings, "c0ffee", versions),
            started="2026-01-02T03:04:05+00:00",
            class_names=tuple(names),
            task_sizes=tuple(task_sizes),
            dataset=DatasetRecord(name="digits", num_train=1437, num_test=360, shape=(1, 8, 8)),
        )
        draw = random.Random(f"{method}{seed}{overrides}")  # noqa: S311 - made-up numbers
        writer = RecordWriter(run_directory(tmp_path / "runs", info), info)
        skills = {"finetune": 0.4, "replay": 0.75, "der": 0.95, "grace": 0.94, "joint": 1.1}
        skill = skills.get(method, 0.8)
        backbones = 1
        for task in range(1, (len(task_sizes) if done is None else done) + 1):
            verdict: str | None = verdicts[task - 1] if verdicts else None
            if method == "grace":
                drawn = "start" if task == 1 else draw.choice(["grow", "compress"])
                verdict = verdict or drawn
            grows = verdict == "grow" or (method == "der" and task > 1)
            backbones += grows
            shown = evaluated is None or task in evaluated
            confusion = synthetic_confusion(task_sizes, task, skill, draw) if shown else None
            known = (task, task_sizes, method, draw, verdict, backbones, confusion)
            line = synthetic_line(*known, task_aware=task_aware)
            writer.append_task(TaskRecord.model_validate(line))
        if status == "failed":
            return writer.fail(error or "out of luck")
        return writer.finish() if status == "finished" else writer.record

    return make
