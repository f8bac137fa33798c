"""Time a whole GRACE run against a plain PyTorch implementation of the same protocol.

Same images, class order, epochs, batch size and verdicts on both sides, one run after the other,
each in a process of its own:

    python benchmarks/end_to_end.py ROOT --out benchmarks/results

ROOT is a folder of 32-pixel images (train/<class>/…, test/<class>/…). The verdicts are pinned:
once expand, expand, compress, expand; once always compress. The plain side (``plain.py``) uses PIL
transforms, loader processes, the contiguous layout, teacher and student that each compute all their
backbones, and tests every five epochs; this side is ``grace`` as its users run it, with compiled
steps. Compilation is part of the time.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from grace.configs.experiment import DataSettings, ExperimentSettings
from grace.configs.recipe import Recipe
from grace.data.images import Dataset
from grace.data.scenario import Scenario
from grace.data.sources import load_dataset
from grace.learner.learner import Learner
from grace.record import collect_hardware, collect_versions, commit
from plain import PlainRecipe, run_plain

PINNED = {"expanding": ("grow", "grow", "compress", "grow"), "compressing": ("compress",) * 4}


def settings_for(args: argparse.Namespace, scenario: str) -> ExperimentSettings:
    """Build the settings of this side; the plain side gets the same numbers."""
    expand_at = tuple(t for t, v in enumerate(PINNED[scenario], start=2) if v == "grow")
    plain = PlainRecipe()

    def steps(epochs: int, shares: tuple[float, ...], weight_decay: float) -> Recipe:
        milestones = tuple(sorted({max(1, round(epochs * share)) for share in shares} - {epochs}))
        return Recipe(epochs=epochs, milestones=milestones, weight_decay=weight_decay)

    base, grow, compress = args.epochs
    return ExperimentSettings.model_validate(
        {
            "name": f"end-to-end-{scenario}",
            "data": {
                "source": "folder",
                "root": str(args.root),
                "max_classes": 5 * args.classes,
                "max_train_per_class": args.images,
                "augmentation": "cifar",
                "skip_duplicates": True,
            },
            "scenario": {"increment": args.classes},
            "memory": {"size": args.memory},
            "backbone": {"name": "resnet32"},
            "method": {
                "name": "grace",
                "base": steps(base, (0.3, 0.6, 0.85), plain.base_weight_decay),
                "grow": steps(grow, (0.47, 0.71, 0.88), plain.weight_decay),
                "compress": Recipe(epochs=compress, schedule="cosine"),
                "expand_at": expand_at,
            },
            "engine": {"device": args.device, "compile": args.compile},
        }
    )


def run_ours(settings: ExperimentSettings, dataset: Dataset) -> dict[str, Any]:
    """Run this side; return accuracies, backbones and seconds by part."""
    scenario = Scenario(dataset, settings.scenario, settings.seeds.class_order)
    started = time.perf_counter()
    learner = Learner(settings, dataset.train.images.shape, dataset.mean, dataset.std)
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
    assert method.name == "grace"
    recipe = PlainRecipe(
        base_epochs=method.base.epochs,
        grow_epochs=method.grow.epochs,
        compress_epochs=method.compress.epochs,
        base_milestones=method.base.milestones,
        grow_milestones=method.grow.milestones,
        mean=(dataset.mean[0], dataset.mean[1], dataset.mean[2]),
        std=(dataset.std[0], dataset.std[1], dataset.std[2]),
    )
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
    lines = []
    for scenario, sides in results.items():
        plain, ours = sides["plain"], sides["grace"]
        ratio = plain["seconds"]["total"] / ours["seconds"]["total"]
        lines += [
            f"\n### {scenario}: {ratio:.2f} times faster\n",
            "| part | plain, s | grace, s |",
            "|---|---:|---:|",
            *(
                f"| {part} | {plain['seconds'].get(part, 0):.1f} | {ours['seconds'].get(part, 0):.1f} |"
                for part in ("data", "frozen", "training", "assess", "herding", "evaluation", "total")
            ),
            "",
            f"Last accuracy: plain {plain['accuracies'][-1]:.1f} %, "
            f"grace {ours['accuracies'][-1]:.1f} %; "
            f"backbones {plain['backbones']} and {ours['backbones']}.",
        ]
    return "\n".join(lines) + "\n"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("root", type=Path, help="folder of 32-pixel images")
    parser.add_argument("--out", type=Path, help="folder for the result (JSON and Markdown)")
    parser.add_argument("--classes", type=int, default=10, help="classes per task (5 tasks)")
    parser.add_argument("--images", type=int, default=250, help="training images per class")
    parser.add_argument("--memory", type=int, default=1000, help="exemplars")
    parser.add_argument("--epochs", type=int, nargs=3, default=(10, 10, 8), help="base grow compress")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--no-compile", dest="compile", action="store_false")
    parser.add_argument("--scenario", choices=tuple(PINNED), action="append")
    parser.add_argument("--side", choices=("plain", "grace"), help=argparse.SUPPRESS)
    return parser.parse_args()


def one_side(args: argparse.Namespace, scenario: str) -> dict[str, Any]:
    """Run one side of one scenario in this process."""
    settings = settings_for(args, scenario)
    dataset = load_dataset(settings.data)
    if args.side == "plain":
        return run_theirs(settings, dataset, scenario)
    return run_ours(settings, dataset)


def main() -> None:
    """Run all sides, or the one asked for, and print or write the result."""
    args = parse()
    scenarios = args.scenario or list(PINNED)
    if args.side:
        print(json.dumps(one_side(args, scenarios[0])))
        return
    started = datetime.now(UTC)
    results: dict[str, dict[str, Any]] = {}
    for scenario in scenarios:
        results[scenario] = {}
        for side in ("plain", "grace"):
            command = [sys.executable, *sys.argv, "--scenario", scenario, "--side", side]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            results[scenario][side] = json.loads(done.stdout.splitlines()[-1])
            seconds = results[scenario][side]["seconds"]["total"]
            print(f"{scenario}, {side}: {seconds:.0f} s", file=sys.stderr)
    text = table(results)
    print(text)
    if args.out:
        about = {
            "date": started.isoformat(timespec="seconds"),
            "commit": commit(),
            "command": " ".join(["python", "benchmarks/end_to_end.py", "ROOT", *sys.argv[2:]]),
            "hardware": collect_hardware(args.device, torch.get_num_threads()),
            "platform": platform.platform(),
            "versions": collect_versions(),
        }
        name = f"end_to_end-{started:%Y%m%d}-{args.device}"
        args.out.mkdir(parents=True, exist_ok=True)
        document = json.dumps({**about, "results": results}, indent=1)
        (args.out / f"{name}.json").write_text(document + "\n")
        (args.out / f"{name}.md").write_text(
            f"# End to end, {started:%Y-%m-%d}, {args.device}\n\n"
            f"`{about['command']}`, commit {about['commit']}\n{text}"
        )


if __name__ == "__main__":
    main()
