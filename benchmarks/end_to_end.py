"""Time a whole GRACE run against a plain PyTorch implementation of the same protocol.

Same images, class order, epochs, batch size and verdicts on both sides, one run after the other,
each in a process of its own:

    python benchmarks/end_to_end.py ROOT --out benchmarks/results

ROOT is a folder of 32-pixel images (train/<class>/…, test/<class>/…). The verdicts are pinned:
once expand, expand, compress, expand; once always compress. The plain side (``plain.py``) uses PIL
transforms, loader processes, the contiguous layout, teacher and student that each compute all
their backbones, and tests every five epochs. This side is ``grace`` as its users run it: steps are
compiled where a phase is long enough (``--compile auto``). Compilation is part of the time and
also told apart (it lies within training and frozen): the compiler's cache is empty when the first
scenario starts and warm for the second. This side also evaluates nearest class means, which the
plain side does not. On a machine that other work shares, compare the seconds of the processor
(part "cpu", with all processes of a side) and give both sides one thread (OMP_NUM_THREADS=1).
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch._dynamo.utils import calculate_time_spent

from grace.data.images import Dataset
from grace.data.scenario import Scenario
from grace.data.sources import load_dataset
from grace.learner.learner import Learner
from grace.methods.grace import Grace
from grace.runs.provenance import collect_hardware, collect_versions, commit
from grace.settings.experiment import ExperimentSettings
from plain import PlainRecipe, run_plain

SIDES = ("plain", "grace")
PINNED = {"expanding": ("grow", "grow", "compress", "grow"), "compressing": ("compress",) * 4}


def settings_for(args: argparse.Namespace, scenario: str) -> ExperimentSettings:
    """Build the settings of this side; the plain side gets the same numbers."""
    expand_at = tuple(t for t, v in enumerate(PINNED[scenario], start=2) if v == "grow")
    epochs = dict(zip(("base", "grow", "compress"), args.epochs, strict=True))
    return ExperimentSettings.model_validate(
        {
            "name": f"end-to-end-{scenario}",
            "data": {
                "source": "folder",
                "root": str(args.root),
                "max_classes": 5 * args.classes,
                "max_train_per_class": args.images,
                # As in CIFAR-100, one test image for five training images.
                "max_test_per_class": max(1, args.images // 5),
                "augmentation": "cifar",
                "skip_duplicates": True,
            },
            "scenario": {"increment": args.classes},
            "memory": {"size": args.memory},
            "backbone": {"name": "resnet32"},
            # Milestones keep their published share of the epochs.
            "method": {
                "name": "grace",
                **{phase: {"epochs": number, "lr": args.lr} for phase, number in epochs.items()},
                "expand_at": expand_at,
            },
            "engine": {
                "device": args.device,
                "compile": "auto" if args.compile == "auto" else args.compile == "true",
                "precision": args.precision,
            },
        }
    )


def run_ours(settings: ExperimentSettings, dataset: Dataset) -> dict[str, Any]:
    """Run this side; return accuracies, backbones and seconds by part."""
    scenario = Scenario(dataset, settings.scenario, settings.seeds.class_order)
    started = time.perf_counter()
    learner = Learner.create(
        settings, shape=dataset.train.images.shape, mean=dataset.mean, std=dataset.std
    )
    seconds: dict[str, float] = defaultdict(float)
    accuracies = []
    for task in scenario:
        names = [scenario.class_names[int(label)] for label in task.data.labels]
        update = learner.update(task.data.images, names)
        for work in update.work:
            if work.epochs:
                seconds["data"] += work.seconds.data
                seconds["frozen"] += work.seconds.frozen
                seconds["training"] += work.seconds.training
            else:
                seconds["assess" if work.name == "assess" else "herding"] += work.seconds.total
        before = time.perf_counter()
        test = scenario.test_images(task.number)
        scores = learner.scores(test.images)["linear"]
        accuracies.append(100 * float((scores.argmax(dim=1) == test.labels).float().mean()))
        seconds["evaluation"] += time.perf_counter() - before
    seconds["total"] = time.perf_counter() - started
    seconds["compile"] = calculate_time_spent().get("total_wall_time", 0.0)
    return {
        "accuracies": accuracies,
        "backbones": learner.size().num_backbones,
        "parameters": learner.size().backbone_parameters,
        "seconds": dict(seconds),
    }


def run_theirs(settings: ExperimentSettings, dataset: Dataset, scenario: str) -> dict[str, Any]:
    """Run the plain side on the same images, order and recipe."""
    stream = Scenario(dataset, settings.scenario, settings.seeds.class_order)
    tasks = list(stream)

    def arrays(images: Any, labels: torch.Tensor) -> tuple[Any, Any]:  # noqa: ANN401
        pixels = images.gather(torch.arange(len(images))).permute(0, 2, 3, 1)
        return pixels.contiguous().numpy(), labels.numpy()

    parts = [arrays(task.data.images, task.data.labels) for task in tasks]
    test = stream.test_images(len(tasks))
    method = settings.method
    assert isinstance(method, Grace.Settings)
    recipe = PlainRecipe(
        base_epochs=method.base.epochs,
        grow_epochs=method.grow.epochs,
        compress_epochs=method.compress.epochs,
        base_milestones=method.base.milestones,
        grow_milestones=method.grow.milestones,
        batch_size=method.base.batch_size,
        lr=method.base.lr,
        momentum=method.base.momentum,
        base_weight_decay=method.base.weight_decay,
        weight_decay=method.grow.weight_decay,
        alpha=method.logit_weight,
        beta=method.feature_weight,
        temperature=method.temperature,
        gamma=method.gamma,
        mean=(dataset.mean[0], dataset.mean[1], dataset.mean[2]),
        std=(dataset.std[0], dataset.std[1], dataset.std[2]),
    )
    assert settings.memory.size is not None
    result = run_plain(
        np.concatenate([pixels for pixels, _ in parts]),
        np.concatenate([labels for _, labels in parts]),
        *arrays(test.images, test.labels),
        task_sizes=list(stream.task_sizes),
        verdicts=list(PINNED[scenario]),
        recipe=recipe,
        memory_size=settings.memory.size,
        seed=settings.seeds.initialisation,
        device=settings.engine.device,
    )
    kept = ("accuracies", "backbones", "parameters", "seconds")
    return {key: value for key, value in result.items() if key in kept}


def table(results: dict[str, dict[str, Any]]) -> str:
    """Lay the seconds of both sides out as Markdown, one row for each part."""
    parts = [
        "data",
        "frozen",
        "training",
        "assess",
        "herding",
        "evaluation",
        "compile",
        "total",
        "cpu",
    ]
    lines = []
    for scenario, sides in results.items():
        plain, ours = sides["plain"]["seconds"], sides["grace"]["seconds"]
        warm = plain["total"] / (ours["total"] - ours["compile"])
        lines += [
            f"\n## {scenario}: {plain['total'] / ours['total']:.2f} times faster "
            f"({warm:.2f} without compilation; {plain['cpu'] / ours['cpu']:.2f} in seconds of the "
            "processor)\n",
            "| part | plain, s | grace, s |",
            "|---|---:|---:|",
            *(f"| {part} | {plain.get(part, 0):.1f} | {ours.get(part, 0):.1f} |" for part in parts),
            "",
            f"Accuracy after the last task: plain {sides['plain']['accuracies'][-1]:.1f} %, "
            f"grace {sides['grace']['accuracies'][-1]:.1f} %; backbones "
            f"{sides['plain']['backbones']} and {sides['grace']['backbones']}.",
        ]
    return "\n".join(lines) + "\n"


def parse() -> argparse.Namespace:
    """Read the command line."""
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("root", type=Path, help="folder of 32-pixel images")
    parser.add_argument("--out", type=Path, help="folder for the result (JSON and Markdown)")
    parser.add_argument("--classes", type=int, default=10, help="classes per task (5 tasks)")
    parser.add_argument("--images", type=int, default=250, help="training images per class")
    parser.add_argument("--memory", type=int, default=1000, help="exemplars")
    parser.add_argument(
        "--epochs", type=int, nargs=3, default=(10, 10, 8), help="of base, grow and compress"
    )
    parser.add_argument(
        "--lr", type=float, default=0.1, help="learning rate; runs of few epochs need a lower one"
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--compile", default="auto", choices=("auto", "true", "false"), help="as engine.compile"
    )
    parser.add_argument(
        "--precision", default="float32", help="as engine.precision; the plain side has float32"
    )
    parser.add_argument("--scenario", choices=tuple(PINNED), help="only this one")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    return parser.parse_args()


def cpu_seconds() -> float:
    """Return the processor's seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def one_side(args: argparse.Namespace) -> dict[str, Any]:
    """Run one side of one scenario in this process."""
    settings = settings_for(args, args.scenario)
    dataset = load_dataset(settings.data)
    started = cpu_seconds()
    if args.side == "plain":
        result = run_theirs(settings, dataset, args.scenario)
    else:
        result = run_ours(settings, dataset)
    result["seconds"]["cpu"] = cpu_seconds() - started
    return result


def in_process(scenario: str, side: str, cache: str) -> dict[str, Any]:
    """Run one side in a process of its own, with the compiler's cache in ``cache``."""
    command = [sys.executable, *sys.argv, "--scenario", scenario, "--side", side]
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise SystemExit(f"{scenario}, {side} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    accuracies = " ".join(f"{accuracy:.1f}" for accuracy in result["accuracies"])
    print(
        f"{scenario}, {side}: {result['seconds']['total']:.0f} s, {result['backbones']} backbones, "
        f"accuracy {accuracies}",
        file=sys.stderr,
    )
    return result


def main() -> None:
    """Run all sides, or the one asked for, and print or write the result."""
    args = parse()
    if args.side:
        print(json.dumps(one_side(args)))
        return
    started = datetime.now(UTC)
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as cache:
        for scenario in [args.scenario] if args.scenario else list(PINNED):
            results[scenario] = {side: in_process(scenario, side, cache) for side in SIDES}
            backbones = {side["backbones"] for side in results[scenario].values()}
            assert len(backbones) == 1, "the two sides did different work"
    text = table(results)
    print(text)
    if args.out:
        write(args, started, results, text)


def write(
    args: argparse.Namespace, started: datetime, results: dict[str, dict[str, Any]], text: str
) -> None:
    """Write the result with all that is needed to repeat it."""
    gpu = torch.cuda.get_device_name() if args.device == "cuda" else None
    hardware = collect_hardware(args.device, torch.get_num_threads(), gpu)
    command = (
        f"python benchmarks/end_to_end.py ROOT --classes {args.classes} --images {args.images} "
        f"--memory {args.memory} --epochs {' '.join(map(str, args.epochs))} "
        f"--lr {args.lr} --device {args.device} --compile {args.compile} "
        f"--precision {args.precision}"
    )
    about: dict[str, Any] = {
        "date": started.isoformat(timespec="seconds"),
        "commit": commit(),
        "command": command,
        "hardware": hardware,
        "versions": collect_versions(),
    }
    name = f"end_to_end-{started:%Y%m%d}-{args.device}"
    args.out.mkdir(parents=True, exist_ok=True)
    document = json.dumps({**about, "results": results}, indent=1)
    (args.out / f"{name}.json").write_text(document + "\n")
    machine = ", ".join(f"{key} {value}" for key, value in hardware.items() if value)
    (args.out / f"{name}.md").write_text(
        f"# End to end, {started:%Y-%m-%d}, {args.device}\n\n`{command}`\n\n"
        f"Commit {about['commit']}; torch {about['versions']['torch']}; {machine}.\n{text}"
    )


if __name__ == "__main__":
    main()
