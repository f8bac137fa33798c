"""Share memory between the threads that decode images, so that large images wait in turn."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from typing import final

from grace.base.machine import memory_bytes, return_freed_memory


@final
class DecodingBudget:
    """A number of bytes that decoding images may take together.

    Args:
        num_bytes: the limit. Higher: more large images are decoded at once, with more memory.
    """

    def __init__(self, num_bytes: int) -> None:
        self.num_bytes = num_bytes
        self._used = 0
        self._changed = Condition()

    @contextmanager
    def taken(self, num_bytes: int) -> Iterator[None]:
        """Wait until ``num_bytes`` are free, and hold them while the context lasts.

        More than the whole budget is given when nothing else is held: the image is decoded alone.
        """
        with self._changed:
            while self._used and self._used + num_bytes > self.num_bytes:
                self._changed.wait()
            self._used += num_bytes
        is_large = num_bytes > self.num_bytes // 3
        try:
            if is_large:
                return_freed_memory()
            yield
        finally:
            if is_large:
                return_freed_memory()
            with self._changed:
                self._used -= num_bytes
                self._changed.notify_all()


# A machine of many cores has memory for all of them; photographs must not wait there.
BUDGET = DecodingBudget(max(768 * 2**20, (memory_bytes() or 0) // 32))
"""The budget of this process."""
