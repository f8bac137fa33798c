"""Measure what other work on the same cores does to training with several threads.

    python benchmarks/busy_cores.py --out benchmarks/results

Threads of OpenMP that wait for each other spin before they sleep. Each way of waiting trains a
ResNet-20 on 32-pixel images, in a process of its own: alone, and with one and two busy processes
for each core.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import torch

from grace.base.machine import processor_name, usable_cores
from grace.learner.budget import measure_speed
from grace.learner.model import Model
from grace.settings.experiment import BackboneSettings, ExperimentSettings
from grace.settings.methods import FinetuneSettings
from grace.settings.recipe import Recipe

WAYS = {
    "one thread": {"OMP_NUM_THREADS": "1"},
    "OpenMP's own": {},
    "GOMP_SPINCOUNT=10000": {"GOMP_SPINCOUNT": "10000"},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
}
BATCH, BATCHES = 32, 10  # Of a trial of measure_speed: a first sweep and four measured ones.


def speeds() -> tuple[float, float]:
    """Train; return images per second by the clock, and as a learner measures its machine."""
    recipe = Recipe(epochs=1, batch_size=BATCH)
    settings = ExperimentSettings.model_validate(
        {
            "backbone": BackboneSettings(name="resnet20"),
            "method": FinetuneSettings(base=recipe, update=recipe),
            "engine": {"device": "cpu", "compile": False},
        }
    )
    model = Model(settings, (3, 32, 32), (0.5,) * 3, (0.25,) * 3)
    measure_speed(model.state.method, model.trainer, (3, 32, 32))
    started = time.perf_counter()
    measured = measure_speed(model.state.method, model.trainer, (3, 32, 32))
    return BATCH * BATCHES / (time.perf_counter() - started), measured


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Keep processes busy meanwhile."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def measured(way: Mapping[str, str]) -> str:
    """Train in a process of its own; return two cells of the table."""
    ours = {"OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    command = [sys.executable, __file__, "--child"]
    done = subprocess.run(command, env=kept | dict(way), check=True, capture_output=True, text=True)
    return " | ".join(f"{float(number):.0f}" for number in done.stdout.split())


def main() -> None:
    """Measure all ways; print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for the result (Markdown)")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(*speeds())
        return
    cores = usable_cores()
    lines = [
        f"# Busy cores, {datetime.now(UTC):%Y-%m-%d}, CPU",
        "",
        f"`python benchmarks/busy_cores.py`: {processor_name()}, {cores} cores, torch "
        f"{torch.__version__}; images per second of a ResNet-20 in training, 32 pixels, batch "
        f"{BATCH}. *Measured*: what a learner takes for the speed of its machine.",
        "",
        f"| threads wait by | alone | measured | {cores} busy processes | measured | {2 * cores} | "
        "measured |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    print("\n".join(lines), flush=True)
    for name, way in WAYS.items():
        cells = []
        for count in (0, cores, 2 * cores):
            with busy(count):
                cells.append(measured(way))
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if given.out:
        name = f"busy-cores-{datetime.now(UTC):%Y%m%d}-cpu.md"
        (given.out / name).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
