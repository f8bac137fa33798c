"""Processor seconds of short commands: what a person waits for on an idle core.

Usage: python benchmarks/start_up.py [--repeats 5] [--out benchmarks/results]

Makes a small learner of the embedded digits, then runs each command several times in processes of
their own. Processor time counts, not the clock, so that other work on the machine disturbs less.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from PIL import Image
from sklearn.datasets import load_digits

from grace.storage.processor import processor_name


def write_images(folder: Path) -> Path:
    """Write the digits 0 and 1 as PNG files in a folder per class; return one of them."""
    digits = load_digits()
    for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        if label < 2:
            place = folder / f"digit {label}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray((image * 15.9375).astype("uint8")).save(place / f"{number}.png")
    return next(folder.rglob("*.png"))


def seconds(command: list[str]) -> float:
    """Run a command; return the processor seconds that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure, print and optionally write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        image = write_images(Path(folder, "images"))
        grace = [sys.executable, "-m", "grace"]
        model = str(Path(folder, "model"))
        subprocess.run(
            [*grace, "learn", str(image.parent.parent), "--model", model, "--minutes", "0.05"],
            check=True,
            capture_output=True,
        )
        commands = {
            "import torch alone": [sys.executable, "-c", "import torch"],
            "grace --help": [*grace, "--help"],
            "grace show digits": [*grace, "show", "digits"],
            "grace info MODEL": [*grace, "info", model],
            "grace predict MODEL IMAGE": [*grace, "predict", model, str(image)],
        }
        lines = [
            f"# Start-up, {datetime.now(UTC):%Y-%m-%d}",
            f"`python benchmarks/start_up.py --repeats {given.repeats}`, {processor_name()}; "
            "processor seconds of a process, median and smallest.",
            "| command | median | smallest |\n|---|---:|---:|",
        ]
        rows = []
        for name, command in commands.items():
            found = [seconds(command) for _ in range(given.repeats)]
            rows.append(f"| {name} | {statistics.median(found):.2f} | {min(found):.2f} |")
        text = "\n\n".join(lines) + "\n" + "\n".join(rows) + "\n"
    print(text)
    if given.out is not None:
        name = f"start_up-{datetime.now(UTC):%Y%m%d}-cpu.md"
        (given.out / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
