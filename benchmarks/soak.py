"""Update one learner again and again: what its process takes, its versions and its time.

    OMP_NUM_THREADS=1 python benchmarks/soak.py --out benchmarks/results

Every update brings one new class of made-up images to a GRACE learner that wants to grow at every
update and may not exceed its ceiling, with a home on disk, as ``grace learn`` works. After each,
the resident memory is read, once garbage is collected and the allocator has given back what is
free.
"""

import argparse
import ctypes
import gc
import json
import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from grace.base.randomness import generator
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.runs import collect_hardware, collect_versions, commit
from grace.settings.experiment import ExperimentSettings


def settings_for(args: argparse.Namespace) -> ExperimentSettings:
    """Build GRACE's settings: one epoch a phase, a threshold that no saturation is below."""
    once = {"epochs": 1, "batch_size": 8, "lr": 0.005}
    return ExperimentSettings.model_validate(
        {
            "name": "soak",
            "data": {"augmentation": "shift"},
            "memory": {"size": args.memory, "validation": 2, "max_mb": args.max_mb},
            "backbone": {"name": "resnet20"},
            "method": {
                "name": "grace",
                "base": once,
                "grow": once,
                "compress": once,
                "threshold": 0.0,
            },
            # Batches of few sizes, so that the kernels of all of them are soon built.
            "engine": {"device": "cpu", "compile": False, "eval_batch_size": 8},
        }
    )


def pictures(index: int, count: int, size: int) -> Tensor:
    """Make images of one class: a pattern of its own under noise, uint8."""
    draws = generator(0, "soak", index)
    pattern = torch.randint(0, 200, (1, 3, size, size), generator=draws)
    noise = torch.randint(0, 56, (count, 3, size, size), generator=draws)
    return (pattern + noise).to(torch.uint8)


def resident_bytes() -> int:
    """Read what this process takes, once nothing is held for later (Linux)."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def carry_out(args: argparse.Namespace, home: Path) -> list[dict[str, Any]]:
    """Update a learner so many times; return what was measured after each."""
    shape = (3, args.side, args.side)
    learner = Learner.create(settings_for(args), shape=shape, directory=home)
    lines: list[dict[str, Any]] = []
    for number in range(1, args.updates + 1):
        new = (0, 1) if number == 1 else (number,)
        images = torch.cat([pictures(index, args.images, args.side) for index in new])
        labels = [f"class {index}" for index in new for _ in range(args.images)]
        started = time.perf_counter()
        update = learner.update(images, labels)
        seconds = time.perf_counter() - started
        lines.append(
            {
                "update": number,
                "verdict": update.outcome.verdict,
                "backbones": update.num_backbones[1],
                "classes": len(learner.class_names),
                "exemplars": update.num_exemplars,
                "seconds": round(seconds, 3),
                "resident_bytes": resident_bytes(),
                "version_bytes": ModelStore.open(home).document(number).num_bytes,
                "home_bytes": sum(p.stat().st_size for p in home.rglob("*") if p.is_file()),
            }
        )
    return lines


def slope(values: list[float]) -> float:
    """Fit a line to equal steps; return its rise per step."""
    x = torch.arange(len(values), dtype=torch.float64)
    y = torch.tensor(values, dtype=torch.float64)
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def table(args: argparse.Namespace, lines: list[dict[str, Any]]) -> str:
    """Lay ten of the updates out as Markdown, and say what grows."""
    step = max(1, len(lines) // 10)
    shown = [line for line in lines if line["update"] == 1 or line["update"] % step == 0]
    rows = [
        f"| {line['update']} | {line['verdict']} | {line['backbones']} | {line['exemplars']} | "
        f"{line['seconds']:.2f} | {line['resident_bytes'] / 1e6:.1f} | "
        f"{line['version_bytes'] / 1e6:.3f} | {line['home_bytes'] / 1e6:.1f} |"
        for line in shown
    ]
    half = lines[len(lines) // 2 :]
    largest = max(line["version_bytes"] for line in lines) / 1e6
    per_update = {key: slope([line[key] for line in half]) for key in ("resident_bytes", "seconds")}
    return "\n".join(
        [
            "\n| update | verdict | backbones | exemplars | s | MB | version, MB | home, MB |"
            "\n|---:|---|---:|---:|---:|---:|---:|---:|",
            *rows,
            "",
            f"Over the second half of the updates the process grows by "
            f"{per_update['resident_bytes'] / 1e3:.0f} kB an update, which takes "
            f"{1e3 * per_update['seconds']:+.1f} ms longer each time. The largest version has "
            f"{largest:.3f} MB; the ceiling is {args.max_mb:.3f} MB.",
        ]
    )


def parse() -> argparse.Namespace:
    """Read the command line."""
    form = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--out", type=Path, help="folder for the result (JSON and Markdown)")
    parser.add_argument("--updates", type=int, default=100, help="the first brings two classes")
    parser.add_argument("--images", type=int, default=10, help="training images per class")
    parser.add_argument("--side", type=int, default=8, help="of the images, in pixels")
    parser.add_argument("--memory", type=int, default=128, help="exemplars")
    parser.add_argument("--max-mb", type=float, default=4.2, help="ceiling of a version")
    return parser.parse_args()


def main() -> None:
    """Carry the updates out and print or write the result."""
    args = parse()
    started = datetime.now(UTC)
    with tempfile.TemporaryDirectory() as folder:
        lines = carry_out(args, Path(folder) / "home")
    text = table(args, lines)
    print(text)
    if args.out:
        write(args, started, lines, text)


def write(
    args: argparse.Namespace, started: datetime, lines: list[dict[str, Any]], text: str
) -> None:
    """Write the result with all that is needed to repeat it."""
    hardware = collect_hardware("cpu", torch.get_num_threads())
    command = (
        f"python benchmarks/soak.py --updates {args.updates} --images {args.images} "
        f"--side {args.side} --memory {args.memory} --max-mb {args.max_mb:g}"
    )
    about: dict[str, Any] = {
        "date": started.isoformat(timespec="seconds"),
        "commit": commit(),
        "command": command,
        "hardware": hardware,
        "versions": collect_versions(),
    }
    name = f"soak-{started:%Y%m%d}-cpu"
    args.out.mkdir(parents=True, exist_ok=True)
    document = json.dumps({**about, "updates": lines}, indent=1)
    (args.out / f"{name}.json").write_text(document + "\n")
    machine = ", ".join(f"{key} {value}" for key, value in hardware.items() if value)
    (args.out / f"{name}.md").write_text(
        f"# Soak, {started:%Y-%m-%d}, cpu\n\n`{command}`\n\n"
        f"Commit {about['commit']}; torch {about['versions']['torch']}; {machine}.\n{text}\n"
    )


if __name__ == "__main__":
    main()
