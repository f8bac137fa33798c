"""Seconds of short commands: what a person waits for on an idle core.

Usage: python benchmarks/start_up.py [--repeats 5] [--out benchmarks/results]

Makes a small learner of the embedded digits, then runs each command several times in processes of
their own. Processor seconds are what an idle core takes; other work on the machine disturbs them
less than the clock. Predictions are measured without a twin, where they leave one, and with it.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from PIL import Image
from sklearn.datasets import load_digits

from grace.base.machine import processor_name


def write_images(folder: Path) -> Path:
    """Write the digits 0 and 1 as PNG files in a folder per class; return one of them."""
    digits = load_digits()
    for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        if label < 2:
            place = folder / f"digit {label}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray((image * 15.9375).astype("uint8")).save(place / f"{number}.png")
    return next(folder.rglob("*.png"))


def seconds(command: list[str], cleared: Path | None = None) -> tuple[float, float]:
    """Run a command; return its processor seconds, and those of the clock.

    Args:
        command: to run, which must succeed.
        cleared: folder that is removed before.
    """
    if cleared is not None:
        shutil.rmtree(cleared, ignore_errors=True)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    clock, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, clock


def main() -> None:
    """Measure, print and optionally write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOME"] = folder  # Its cache keeps the twins.
        os.environ.pop("XDG_CACHE_HOME", None)
        image = write_images(Path(folder, "images"))
        grace = [sys.executable, "-m", "grace"]
        model = str(Path(folder, "model"))
        subprocess.run(
            [*grace, "learn", str(image.parent.parent), "--model", model, "--minutes", "0.05"],
            check=True,
            capture_output=True,
        )
        predict = [*grace, "predict", model, str(image)]
        cache = Path(folder, ".cache")
        commands: dict[str, tuple[list[str], Path | None]] = {
            "import torch alone": ([sys.executable, "-c", "import torch"], None),
            "grace --help": ([*grace, "--help"], None),
            "grace show digits": ([*grace, "show", "digits"], None),
            "grace info MODEL": ([*grace, "info", model], None),
            "grace predict MODEL IMAGE, GRACE_TWINS=0": (["env", "GRACE_TWINS=0", *predict], None),
            "grace predict MODEL IMAGE, the first: leaves a twin": (predict, cache),
            "grace predict MODEL IMAGE, later ones": (predict, None),
        }
        lines = [
            f"# Start-up, {datetime.now(UTC):%Y-%m-%d}",
            f"`python benchmarks/start_up.py --repeats {given.repeats}`, {processor_name()}; "
            "seconds of a process: of the processor, and of the clock; load average "
            f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores.",
            "| command | processor, median | smallest | clock, median | smallest |\n"
            "|---|---:|---:|---:|---:|",
        ]
        rows = []
        for name, (command, cleared) in commands.items():
            found = [seconds(command, cleared) for _ in range(given.repeats)]
            cells = [
                f"{one:.2f}" for own in zip(*found, strict=True) for one in (median(own), min(own))
            ]
            rows.append(f"| {name} | {' | '.join(cells)} |")
        text = "\n\n".join(lines) + "\n" + "\n".join(rows) + "\n"
    print(text)
    if given.out is not None:
        name = f"start_up-{datetime.now(UTC):%Y%m%d}-cpu.md"
        (given.out / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
