"""Measure how many images per second each named augmentation gives.

python benchmarks/augmentation.py --out benchmarks/results
"""

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import torch

from grace.data.augmentation import build_augmentation
from grace.data.batches import epoch_batches
from grace.data.images import LabelledImages, TensorImages
from grace.runs import collect_hardware, collect_versions, commit
from grace.settings.augmentation import AugmentationName


@dataclass(frozen=True)
class Measured:
    """What one augmentation gives with so many CPU threads at one batch size."""

    name: str
    threads: int
    batch_size: int
    images_per_second: float
    """The best epoch: what else the machine does only makes it slower."""


def pictures(count: int, size: int, device: torch.device) -> LabelledImages:
    """Make smooth images with some noise, on which no change is trivial."""
    source = torch.Generator().manual_seed(0)
    coarse = torch.rand(count, 3, 5, 5, generator=source)
    smooth = torch.nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")
    noise = 0.1 * torch.rand(count, 3, size, size, generator=source)
    pixels = (230 * smooth + 255 * noise).clamp_(0, 255).to(torch.uint8)
    return LabelledImages(TensorImages(pixels.to(device)), torch.zeros(count, dtype=torch.int64))


def measure(
    name: AugmentationName,
    data: LabelledImages,
    batch_size: int,
    device: torch.device,
    least: float,
) -> Measured:
    """Time whole epochs for ``least`` seconds and keep the best, after one to warm up."""
    size = data.images.shape[1]
    augmentation = build_augmentation(name, (0.5,) * 3, (0.25,) * 3, size).to(device)
    best, started, epoch = float("inf"), time.perf_counter(), 0
    while epoch < 2 or time.perf_counter() - started < least:
        order, draws = (torch.Generator().manual_seed(2 * epoch + one) for one in (0, 1))
        before = time.perf_counter()
        for _ in epoch_batches(
            data, batch_size, order, augmentation, draws, device=device, channels_last=True
        ):
            pass
        if device.type == "cuda":
            torch.cuda.synchronize()
        if epoch:
            best = min(best, time.perf_counter() - before)
        epoch += 1
    return Measured(name, torch.get_num_threads(), batch_size, len(data) / best)


def table(results: list[Measured]) -> str:
    """Lay the results out as Markdown, one column per number of threads and batch size."""
    columns = sorted({(result.threads, result.batch_size) for result in results})
    titles = [f"{threads} threads, batches of {size}" for threads, size in columns]
    rows = [f"| images/s | {' | '.join(titles)} |", "|---|" + "---:|" * len(columns)]
    found = {(each.name, each.threads, each.batch_size): each.images_per_second for each in results}
    for name in dict.fromkeys(result.name for result in results):
        cells = (f"{found[name, *column]:,.0f}" for column in columns)
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def parse() -> argparse.Namespace:
    """Read the command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--names", nargs="*", default=list(get_args(AugmentationName)))
    parser.add_argument("--images", type=int, default=5000, help="images in an epoch")
    parser.add_argument("--size", type=int, default=32, help="side of the images in pixels")
    parser.add_argument("--batch-sizes", type=int, nargs="*", default=[128, 512])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2], help="CPU threads")
    parser.add_argument("--seconds", type=float, default=2, help="time for each measurement")
    parser.add_argument("--out", type=Path, help="folder for the result (JSON and Markdown)")
    return parser.parse_args()


def main() -> None:
    """Measure, and print or write the result."""
    args = parse()
    date, device = datetime.now(UTC), torch.device(args.device)
    data = pictures(args.images, args.size, device)
    load = os.getloadavg()[0]
    results = []
    for threads in args.threads:
        torch.set_num_threads(threads)
        results += [
            measure(name, data, batch_size, device, args.seconds)
            for name in args.names
            for batch_size in args.batch_sizes
        ]
    hardware = collect_hardware(args.device, max(args.threads))
    machine = ", ".join(f"{key} {value}" for key, value in hardware.items() if value)
    text = (
        f"{args.images} images of {args.size} pixels; {machine}; load of the machine by others "
        f"{load:.1f}.\n\n{table(results)}"
    )
    print(text)
    if not args.out:
        return
    about: dict[str, Any] = {
        "date": date.isoformat(timespec="seconds"),
        "commit": commit(),
        "command": f"python benchmarks/augmentation.py --images {args.images} --size {args.size} "
        f"--device {args.device} --threads {' '.join(map(str, args.threads))}",
        "hardware": hardware,
        "load": load,
        "versions": collect_versions(),
    }
    name = f"augmentation-{date:%Y%m%d}-{device.type}"
    args.out.mkdir(parents=True, exist_ok=True)
    document = json.dumps({**about, "results": [asdict(each) for each in results]}, indent=1)
    (args.out / f"{name}.json").write_text(document + "\n")
    (args.out / f"{name}.md").write_text(
        f"# Augmented images per second, {date:%Y-%m-%d}, {device.type}\n\n`{about['command']}`\n\n"
        f"Commit {about['commit']}; torch {about['versions']['torch']}; {text}"
    )


if __name__ == "__main__":
    main()
