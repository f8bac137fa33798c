"""The points of a process: calls that change files, counted, and the one at which it dies.

Everything in Python that changes files goes through ``os`` or ``open``: these are wrapped. What
would not is heard of through Python's audit events and noted as escaped.
"""

import builtins
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, final

_CALLS = (
    *("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "link", "symlink"),
    *("truncate", "ftruncate", "fsync", "write", "open"),
)
ORIGINAL: Mapping[str, Callable[..., Any]] = {name: getattr(os, name) for name in _CALLS}
_OPEN = io.open
_FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink")


@final
class Points:
    """Counts the calls that change files, and ends the process at a chosen one, from 1."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.escaped: list[str] = []
        """Changes that Python itself heard of, but that are no points."""
        self._chosen = 0
        self._away = 0

    def watch(self, chosen: int) -> None:
        """Count from now on, and die at point ``chosen``."""
        self._chosen = chosen
        for name in _CALLS:
            setattr(os, name, self._counted(name))
        io.open = builtins.open = self._open  # type: ignore[assignment]
        sys.addaudithook(self._hear)

    def reach(self, name: str, last: Callable[[], object] = lambda: None) -> None:
        """Be at a point; if it is the chosen one, do ``last`` and die."""
        if self._away:
            return
        self.names.append(name)
        if len(self.names) == self._chosen:
            with self.looking_away():
                last()
            os.kill(os.getpid(), signal.SIGKILL)

    @contextmanager
    def looking_away(self) -> Iterator[None]:
        """Let what follows be no points."""
        self._away += 1
        try:
            yield
        finally:
            self._away -= 1

    def _counted(self, name: str) -> Callable[..., Any]:
        original = ORIGINAL[name]

        def call(*args: Any, **kwargs: Any) -> Any:
            if name != "open" or args[1] & _FOR_WRITING:
                # An unfinished file has a random name: what it becomes says more.
                self.reach(f"{name} {_last_part(args[name == 'replace'])}")
            if name == "write":
                half = args[1][: len(args[1]) // 2]
                self.reach("half of write", lambda: original(args[0], half))
            if name == "fsync":
                return None  # What a killed process has written is not lost, flushed or not.
            with self.looking_away():
                return original(*args, **kwargs)

        return call

    def _open(self, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if not set(mode) & set("wxa+"):
            return _OPEN(file, mode, *args, **kwargs)
        self.reach(f"open {_last_part(file)}")
        with self.looking_away():
            return _Written(_OPEN(file, mode, *args, **kwargs), self)

    def _hear(self, event: str, args: Sequence[Any]) -> None:
        """Hear of a change from Python's own audit: it must come through one of our calls."""
        if not self._away and (
            event in _CHANGES or (event == "open" and (args[2] or 0) & _FOR_WRITING)
        ):
            self.escaped.append(f"{event} {args[0]}")


@final
class _Written:
    """A file that is being written: each write is two points."""

    def __init__(self, file: Any, points: Points) -> None:
        self._file = file
        self._points = points

    def write(self, data: Any) -> int:
        self._points.reach("write")
        self._points.reach("half of write", lambda: self._write_half(data))
        number: int = self._file.write(data)
        return number

    def _write_half(self, data: Any) -> None:
        self._file.write(data[: len(data) // 2])
        self._file.flush()

    def __enter__(self) -> Self:
        self._file.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _last_part(path: Any) -> str:
    return Path(path).name if isinstance(path, str | Path) else ""
