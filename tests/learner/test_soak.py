"""Update after update in one process: memory and versions stay within their bounds."""

import ctypes
import gc
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from torch import Tensor, nn

from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.grace import Grace
from grace.nn.expandable import copy_of
from grace.settings.experiment import EngineSettings, MemorySettings
from support.tiny_streams import SIZE, class_names, labelled, recipe, settings

pytestmark = [
    pytest.mark.usefixtures("tiny_backbones"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks glibc"),
]

MAX_MB = 0.75
FLAT_PROCESS = 40_000
"""Bytes in use per update that count as flat: an update's record takes 22 kB, all else 3 kB."""
FLAT = 4_000
"""Bytes of tensors per update that count as flat: a head grows by a row in each of a few copies,
and an image is held out, about a kilobyte. A leaked memory weighs 7.7 kB, a network 600 kB."""


class _Heap(ctypes.Structure):
    _fields_ = (("numbers", ctypes.c_size_t * 10),)


def bytes_in_use() -> int:
    """Of C's heap and of Python's blocks, about 100 bytes each; pages would count gaps, too."""
    gc.collect()
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _Heap
    large, others = ask().numbers[4:8:3]
    return int(large + others) + 100 * sys.getallocatedblocks()


def tensor_bytes() -> int:
    """Of all storages that a tensor of this process refers to."""
    alive = [thing for thing in gc.get_objects() if type(thing) in (Tensor, nn.Parameter)]
    storages = [tensor.untyped_storage() for tensor in alive if tensor.device.type == "cpu"]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def steady_growth(values: list[int]) -> float:
    """Mean step, without the largest: a leak is in every step, an allocator's new page in one."""
    largest = max(after - before for before, after in pairwise(values))
    return (values[-1] - values[0] - largest) / (len(values) - 2)


def growth(home: Path, num_updates: int, *, leaks: bool = False) -> tuple[float, float]:
    """Update a learner again and again; return the growth of the process and of its tensors."""
    # Batches of at most eight images: the kernels of all their sizes are soon built.
    once = recipe(batch_size=8)
    method = Grace.Settings(base=once, grow=once, compress=once, threshold=0.0)
    memory = MemorySettings(size=40, validation=1, max_mb=MAX_MB)
    engine = EngineSettings(device="cpu", compile=False, threads=1, eval_batch_size=8)
    chosen = settings(method, memory=memory, engine=engine)
    made, leaked = Learner.create(chosen, shape=(3, SIZE, SIZE), directory=home), []
    process, tensors = [], []
    for number in range(num_updates):
        data = labelled({0: 6, 1: 6} if number == 0 else {number + 1: 6})
        made.update(data.images, class_names(data))
        leaked += [copy_of(made.method.network)] if leaks else []
        process.append(bytes_in_use())
        tensors.append(tensor_bytes())
    told = [update.outcome.verdict for update in made.history]
    assert told == ["start", "grow"] + ["compress (budget)"] * (num_updates - 2)
    sizes = [document.num_bytes for document in ModelStore.open(home).survey().documents]
    assert max(sizes) <= MAX_MB * 1e6
    # A version more costs its class's rows and images and the history's line, no more.
    assert steady_growth(sizes[2:]) < 4_000
    return steady_growth(process[num_updates // 2 :]), steady_growth(tensors[num_updates // 2 :])


def test_memory_and_disk_stay_within_their_bounds(tmp_path: Path) -> None:
    # What was there before stays uncounted: looking at it would take half of the time.
    gc.collect()
    gc.freeze()
    process, tensors = growth(tmp_path / "home", 16)
    assert (process < FLAT_PROCESS, tensors < FLAT) == (True, True), (process, tensors)
    process, tensors = growth(tmp_path / "leaky", 8, leaks=True)
    assert (process > 2 * FLAT_PROCESS, tensors > 2 * FLAT) == (True, True), (process, tensors)
