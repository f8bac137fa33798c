"""Which runs of a study the tasks of an array job have taken, each in a process of its own."""

import secrets
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import final

from grace.base.atomic import write_text
from grace.base.errors import BusyError, DamagedError
from grace.base.files import inside, read_small
from grace.base.lock import exclusive, holder


@final
class Reservations:
    """Locks on runs, which end with the process that holds them, and the failures of one array job.

    Args:
        out: folder of all studies, shared by the machines.
        array: id of the array job. A run that failed is not tried again by its other tasks.
    """

    def __init__(self, out: Path, array: str) -> None:
        self._folder = inside(out, "taken")
        self._folder.mkdir(exist_ok=True)
        self._array = array or secrets.token_hex(8)
        self._own: dict[str, ExitStack] = {}

    def take(self, name: str) -> bool:
        """Reserve a run; return False if another process has it.

        Args:
            name: the run's fingerprint.
        """
        with suppress(BusyError), ExitStack() as stack:
            stack.enter_context(exclusive(self._lock(name), f"the run {name}"))
            self._own[name] = stack.pop_all()
        return name in self._own

    def is_taken(self, name: str) -> bool:
        """Return True if another process has reserved a run."""
        return name not in self._own and holder(self._lock(name)) is not None

    def release(self, name: str, failure: str | None = None) -> None:
        """Give a run back; note why it failed."""
        if failure is not None:
            write_text(self._failed(name), f"{self._array}\n{failure}\n")
        with self._own.pop(name):
            self._lock(name).unlink()  # Before the lock ends: see ``exclusive``.

    def failure(self, name: str) -> str | None:
        """Return why a run failed in this array job; ``None``: it did not."""
        if not self._failed(name).exists():
            return None
        with suppress(DamagedError):  # It was written anew, or cut off.
            text = read_small(self._failed(name), f"'{self._failed(name)}'", 2**20).decode(
                errors="replace"
            )
            array, _, why = text.partition("\n")
            return why.strip() if array == self._array else None
        return None

    def _lock(self, name: str) -> Path:
        return inside(self._folder, f"{name}.lock")

    def _failed(self, name: str) -> Path:
        return inside(self._folder, f"{name}.failed")
