"""Seconds of short commands beside what they may take: what a person waits for.

Usage: python benchmarks/start_up.py [--repeats 5]

Makes folders of digits and a small learner, then runs each command several times in processes of
their own. Processor seconds are what an idle core takes; other work disturbs them less than the
clock does.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits


def write_images(folder: Path, per_class: int, size: int) -> None:
    """Write digits as PNG files of one size, a folder for each of four classes."""
    digits = load_digits()
    for label in range(4):
        place = folder / f"digit {label}"
        place.mkdir(parents=True)
        found = digits.images[digits.target == label]
        for number in range(per_class):
            grey = (found[number % len(found)] * 15.9).astype("uint8")
            image = Image.fromarray(grey).resize((size, size))
            noise = np.random.default_rng(1000 * label + number).integers(0, 9, (size, size), "u1")
            Image.fromarray(np.asarray(image) // 2 + noise).save(place / f"{number}.png")


def seconds(command: list[str], code: int) -> tuple[float, float]:
    """Run a command that must end with a code; return its processor and its clock seconds."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True)
    clock, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, clock


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    folder = Path(tempfile.mkdtemp())
    os.chdir(folder)
    write_images(Path("thumbnails"), 300, 64)
    write_images(Path("few"), 20, 16)
    photo = "few/digit 0/0.png"
    grace = [sys.executable, "-m", "grace"]
    for line in ("learn few --model shelf --minutes 0.01", "export shelf"):
        subprocess.run([*grace, *line.split()], check=True, capture_output=True)
    rows: list[tuple[str, list[str], int, float | None]] = [
        ("--help", ["--help"], 0, 0.3),
        ("list methods", ["list", "methods"], 0, None),
        ("doctor, 1,200 thumbnails", ["doctor", "thumbnails"], 0, 3),
        ("doctor, 80 images", ["doctor", "few"], 0, 1),
        ("learn, no such folder", ["learn", "nowhere", "--model", "m"], 2, 1),
        ("learn, ceiling too low", ["learn", "few", "--model", "m", "--max-mb", "0.01"], 2, 1),
        ("predict, torch", ["predict", "shelf", photo], 0, None),
        ("predict, exported", ["predict", "shelf.onnx", photo], 0, 0.7),
    ]
    print(f"{'grace …':<28}{'processor':>10}{'clock':>8}{'at most':>9}")
    for name, words, code, most in rows:
        taken = [seconds([*grace, *words], code) for _ in range(given.repeats)]
        processor, clock = (median(column) for column in zip(*taken, strict=True))
        limit = f"{most:g} s" if most else "–"
        print(f"{name:<28}{processor:>8.2f} s{clock:>6.2f} s{limit:>9}")


if __name__ == "__main__":
    main()
