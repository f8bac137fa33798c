"""Update after update in one process: memory and versions stay within their bounds."""

import ctypes
import gc
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import final

import pytest
import torch
from torch import Tensor, nn

from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.grace import Grace
from grace.nn.expandable import copy_of
from grace.settings.experiment import EngineSettings, MemorySettings
from support.tiny_streams import SIZE, class_names, labelled, recipe, settings

pytestmark = [
    pytest.mark.usefixtures("tiny_backbones"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]

NUM_UPDATES = 16
"""Two classes, then fifteen times one."""
MAX_MB = 0.75
NUM_IMAGES = 6
FLAT_PROCESS = 150_000
"""Bytes of the process per update that count as flat: an update's record takes 22 kB, and 5 to
100 kB were seen."""
FLAT = 4_000
"""Bytes of tensors per update that count as flat: a head grows by a row in each of a few copies,
and an image is held out, about a kilobyte. A leaked memory weighs 7.7 kB, a network 600 kB."""


@final
@dataclass
class Soak:
    """What was measured after each update."""

    process: list[int] = field(default_factory=list)
    """Bytes of resident memory."""
    tensors: list[int] = field(default_factory=list)
    """Bytes of all tensors that are alive."""
    on_disk: list[int] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)


def resident_bytes() -> int:
    """Of this process, once nothing is held for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def tensor_bytes() -> int:
    """Of all storages that a tensor of this process refers to."""
    alive = [thing for thing in gc.get_objects() if type(thing) in (Tensor, nn.Parameter)]
    storages = [tensor.untyped_storage() for tensor in alive if tensor.device.type == "cpu"]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def slope(values: list[int]) -> float:
    """Least squares over equal steps."""
    x = torch.arange(len(values), dtype=torch.float64)
    y = torch.tensor(values, dtype=torch.float64)
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def steady_growth(values: list[int]) -> float:
    """Mean step, without the largest: a leak is in every step, an allocator's new page in one."""
    steps = sorted(after - before for before, after in pairwise(values))
    return fmean(steps[:-1])


def carry_out(home: Path, num_updates: int, leak: Callable[[Learner], object]) -> Soak:
    """Create a learner that wants to grow ever on, and update it again and again."""
    # Batches of at most eight images: the kernels of all their sizes are soon built.
    once = recipe(batch_size=8)
    method = Grace.Settings(base=once, grow=once, compress=once, threshold=0.0)
    memory = MemorySettings(size=40, validation=1, max_mb=MAX_MB)
    engine = EngineSettings(device="cpu", compile=False, threads=1, eval_batch_size=8)
    chosen = settings(method, memory=memory, engine=engine)
    made, soak, leaked = Learner.create(chosen, shape=(3, SIZE, SIZE), directory=home), Soak(), []
    for number in range(num_updates):
        data = labelled({0: NUM_IMAGES, 1: NUM_IMAGES} if number == 0 else {number + 1: NUM_IMAGES})
        update = made.update(data.images, class_names(data))
        soak.verdicts.append(update.outcome.verdict)
        soak.on_disk.append(ModelStore.open(home).document(number + 1).num_bytes)
        leaked.append(leak(made))
        del data, update
        soak.process.append(resident_bytes())
        soak.tensors.append(tensor_bytes())
    return soak


def test_memory_and_disk_stay_within_their_bounds(tmp_path: Path) -> None:
    # What was there before stays uncounted: looking at it would take half of the time.
    gc.collect()
    gc.freeze()
    soak = carry_out(tmp_path / "home", NUM_UPDATES, lambda made: None)
    assert soak.verdicts == ["start", "grow"] + ["compress (budget)"] * (NUM_UPDATES - 2)
    assert max(soak.on_disk) <= MAX_MB * 1e6
    # A version more costs its class's rows and images and the history's line, no more.
    assert slope(soak.on_disk[2:]) < 4_000
    assert slope(soak.tensors[8:]) < FLAT
    assert steady_growth(soak.process[8:]) < FLAT_PROCESS
    leaky = carry_out(tmp_path / "leaky", 7, lambda made: copy_of(made.method.network))
    assert slope(leaky.tensors[3:]) > 2 * FLAT
    assert steady_growth(leaky.process[3:]) > 2 * FLAT_PROCESS
