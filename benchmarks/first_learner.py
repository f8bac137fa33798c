"""Measure what a learner that is made without options takes and reaches.

Five classes of 140 images first, then updates of two classes of 60 images each (``--first`` and
``--later`` change that), from a data set with ``train/`` and ``test/`` folders of classes; accuracy
is that on all test images of the classes so far. Processor time counts, so that other work on the
machine does not.

    python benchmarks/first_learner.py tiny-imagenet-20-64px --out benchmarks/results

``--experiment folder`` measures what was learnt before settings were chosen for the images.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from grace.data.update_folder import load_update
from grace.learner import teaching
from grace.learner.learner import Learner
from grace.learner.requested import RequestedSettings
from grace.runs import collect_hardware, collect_versions, commit

FIRST, LATER = (5, 140), (2, 60)
"""Classes, and training images of each, in the first update and in every later one."""


def main() -> None:
    """Learn update after update, and write what each took and reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", type=Path, help="folder with train/ and test/")
    parser.add_argument("--updates", type=int, default=2, help="number of updates")
    for name, size in (("first", FIRST), ("later", LATER)):
        parser.add_argument(
            f"--{name}",
            nargs=2,
            type=int,
            default=size,
            metavar=("CLASSES", "IMAGES"),
            help=f"classes of the {name} update, and images of each",
        )
    parser.add_argument("--experiment", help="start from an experiment, as grace learn would")
    parser.add_argument("--set", nargs="*", default=[], help="KEY=VALUE settings")
    parser.add_argument("--out", type=Path, help="folder for the results")
    parser.add_argument("--name", help="of the results; default: the experiment, or chosen")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = list(measured(given, Path(folder)))
    if given.out:
        write(given, rows)


def measured(given: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row for each update."""
    names = sorted(path.name for path in (given.images / "train").iterdir() if path.is_dir())
    seen: list[str] = []
    for number in range(1, given.updates + 1):
        num_classes, num_images = given.first if number == 1 else given.later
        new = names[len(seen) : len(seen) + num_classes]
        seen += new
        images = part(given.images / "train", folder / f"images{number}", new, num_images)
        requested = RequestedSettings(given.experiment if number == 1 else None, given.set)
        started = time.process_time()
        result = teaching.learn(folder / "model", images, requested)
        seconds = time.process_time() - started
        learner = Learner.load(folder / "model")
        test = part(given.images / "test", folder / f"test{number}", seen, None)
        tested = load_update(test, 3, learner.shape[1])
        predicted = learner.predict(tested.images)
        pairs = list(zip(predicted, tested.labels, strict=True))
        update = result.document.history[-1]
        yield (
            row := {
                "update": number,
                "classes": len(seen),
                "images": num_classes * num_images,
                "cpu_minutes": round(seconds / 60, 2),
                "accuracy": percent(pairs, seen),
                "accuracy_of_new_classes": percent(pairs, new),
                "verdict": update.outcome.verdict,
                "saturation": update.outcome.saturation,
                "epochs": {work.name: work.epochs for work in update.work if work.epochs},
                "megabytes": round(update.num_bytes / 1e6, 2),
                "chosen": list(result.chosen),
                "budget": result.document.settings.budget.model_dump(),
            }
        )
        print(json.dumps(row), flush=True)


def part(root: Path, target: Path, names: Sequence[str], most: int | None) -> Path:
    """Link the first images of some classes into a new folder."""
    for name in names:
        (target / name).mkdir(parents=True)
        files = sorted(path for path in (root / name).rglob("*") if path.is_file())
        for file in files[:most]:
            (target / name / file.name).symlink_to(file.resolve())
    return target


def percent(pairs: Sequence[tuple[str, str]], names: Sequence[str]) -> float:
    """Return the accuracy in percent on the images of some classes."""
    right = [guess == name for guess, name in pairs if name in names]
    return round(100 * sum(right) / len(right), 1)


def write(given: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> None:
    """Write the rows as JSON and as a table."""
    now, which = datetime.now(UTC), given.name or given.experiment or "chosen"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    about = {
        "date": now.isoformat(timespec="seconds"),
        "commit": commit(),
        "hardware": collect_hardware(device, torch.get_num_threads()),
        "versions": collect_versions(),
        "settings": {"experiment": given.experiment, "overrides": given.set},
        "sizes": {"first": given.first, "later": given.later},
        "results": rows,
    }
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / f"first-learner-{which}-{now:%Y%m%d}-{device}"
    path.with_suffix(".json").write_text(json.dumps(about, indent=1, default=str) + "\n")
    lines = ["| update | images | CPU minutes | accuracy | of new classes | verdict | epochs |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in rows:
        cells = [row["update"], row["images"], row["cpu_minutes"], row["accuracy"]]
        cells += [row["accuracy_of_new_classes"], row["verdict"], row["epochs"]]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
