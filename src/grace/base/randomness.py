"""Generators for random draws, each seeded by the purpose of the draw.

No generator state is saved: a run resumed from any epoch draws the same numbers as an uninterrupted
one.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def derived_seed(seed: int, *purpose: str | int) -> int:
    """Hash a seed and its purpose (words and counters) to 63 bits.

    The first eight bytes of SHA-256 over the parts joined by ``/``, without the sign bit, so that
    neighbouring seeds and purposes are independent.
    """
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """Make a CPU generator for one purpose, e.g. ``generator(1, "augment", task, epoch)``."""
    return torch.Generator().manual_seed(derived_seed(seed, *purpose))


@contextmanager
def seeded_globally(seed: int, *purpose: str | int) -> Iterator[None]:
    """Seed torch's global generator while the context lasts, for code that takes no generator."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(derived_seed(seed, *purpose))
        yield
