"""Measure what compiling training steps gains and costs, and what engine.compile=auto makes of it.

    OMP_NUM_THREADS=1 python benchmarks/compiling.py --out benchmarks/results

For three sizes of images and networks, eager and compiled trials take turns in one process, with an
empty compiler cache. The least phase that ``auto`` compiles follows from them: its seconds without
and with compilation, and with the trial that a first run makes. All seconds are the processor's.
"""

import argparse
import os
import resource
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import torch

from grace.base.machine import processor_name
from grace.engine.device import is_long
from grace.learner.budget import measure_speed
from grace.learner.model import Model
from grace.learner.trials import MIN_GAIN
from grace.settings.experiment import BackboneSettings, EngineSettings, ExperimentSettings
from grace.settings.methods import FinetuneSettings
from grace.settings.recipe import Recipe


class Size(NamedTuple):
    """A network, the side of its images, the images of a batch, and the number format."""

    backbone: str
    side: int
    batch: int
    precision: str


SIZES = (
    Size("resnet20", 8, 32, "float32"),
    Size("resnet20", 16, 32, "float32"),
    Size("resnet32", 32, 128, "float32"),
    Size("resnet32", 32, 128, "bfloat16"),
)


def speed(size: Size, *, compile: bool) -> float:
    """Return images per second in training, of one core."""
    recipe = Recipe(epochs=1, batch_size=size.batch)
    settings = ExperimentSettings.model_validate(
        {
            "backbone": BackboneSettings(name=size.backbone),
            "method": FinetuneSettings(base=recipe, update=recipe),
            "engine": EngineSettings(
                device="cpu", threads=1, compile=compile, precision=size.precision
            ),
        }
    )
    shape = (3, size.side, size.side)
    model = Model(settings, shape, (0.5,) * 3, (0.25,) * 3)
    return measure_speed(model.state.method, model.trainer, shape)


def cpu_seconds() -> float:
    """Return the processor's seconds of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def row(size: Size) -> str:
    """Measure one size; return its line of the table."""
    eager = speed(size, compile=False)
    started = cpu_seconds()
    compiled = speed(size, compile=True)
    trial = cpu_seconds() - started
    # A trial trains for ten batches.
    cost = trial - 10 * size.batch / compiled
    for _ in range(2):
        eager = max(eager, speed(size, compile=False))
        compiled = max(compiled, speed(size, compile=True))
    images = next(n for n in range(1000, 10**8, 1000) if is_long(1, n, (3, size.side, size.side)))
    without, gain = images / eager, compiled / eager
    chosen = images / compiled + cost if gain >= MIN_GAIN else without
    # The first run on a machine also tries ten batches of each; what it compiled, it can use.
    first = chosen + 20 * size.batch / eager + (0 if gain >= MIN_GAIN else cost)
    return (
        f"| {size.backbone}, {size.side} px, batch {size.batch}, {size.precision} | {eager:.0f} | "
        f"{compiled:.0f} | {gain:.2f} | {cost:.0f} | {without:.0f} | "
        f"{without / (images / compiled + cost):.2f} | {without / chosen:.2f} | "
        f"{without / first:.2f} |"
    )


def main() -> None:
    """Measure all sizes; print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for the result (Markdown)")
    args = parser.parse_args()
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # Its seconds count, in this process.
    lines = [
        f"# Compiling, {datetime.now(UTC):%Y-%m-%d}, CPU",
        "",
        f"`python benchmarks/compiling.py`: {processor_name()}, one thread, torch "
        f"{torch.__version__}; seconds of the processor.",
        "",
        "| step | eager, images/s | compiled | gain | cost, s | least phase, s | always | auto | "
        "first run |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    print("\n".join(lines), flush=True)
    for size in SIZES:
        with tempfile.TemporaryDirectory() as cache:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            lines.append(row(size))
            torch.compiler.reset()
        print(lines[-1], flush=True)
    lines += [
        "",
        "*Least phase*: seconds without compilation of the shortest phase that `auto` may compile. "
        "*Always*, *auto*, *first run*: how many times faster that phase is with compilation, with "
        "what `auto` chooses, and with the trial of a first run on this machine on top. Longer "
        "phases come closer to the gain.",
    ]
    if args.out:
        (args.out / f"compiling-{time.strftime('%Y%m%d')}-cpu.md").write_text(
            "\n".join(lines) + "\n"
        )


if __name__ == "__main__":
    main()
