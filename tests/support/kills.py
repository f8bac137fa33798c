"""Processes that are killed while they work, and whether what comes out is as if none had been.

A *work* (``killed_works.py``) is a function of a folder. It goes on where an earlier process of the
same work stopped, and returns its *facts*: everything that must not depend on kills. A *chain*
gives one work to one process after another: each is killed by SIGKILL at its moment, and the last
one ends by itself. A moment is

* a time: seconds after the process began to work, or
* a point: every call that changes a file, in the order in which a process makes them. The process
  dies just before the call; at a write there is a second point, halfway through its bytes. After a
  call nothing changes before the next one, so dying after it is dying before that.

The processes are forks of this one, which has imported torch.
"""

import builtins
import io
import json
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self, final

from support import killed_works

LIMIT = 900.0
"""Seconds after which a process that nobody kills counts as hung; a busy machine takes minutes."""


@final
@dataclass(frozen=True)
class Kill:
    """When a process is killed: so many seconds after it began, or at its n-th point, from 1."""

    seconds: float | None = None
    point: int = 0


@final
@dataclass(frozen=True)
class Straight:
    """A work that one process did undisturbed."""

    facts: dict[str, Any]
    points: Sequence[str]
    """What each point is, in order."""
    seconds: float


def straight(work: str, folder: Path) -> Straight:
    """Let one process do a work in a new folder, and name all its points.

    Raises:
        AssertionError: if it fails, or changes a file in a way that counts as no point.
    """
    folder.mkdir()
    began = time.monotonic()
    assert not _attempt(work, folder, Kill())
    found = json.loads((folder / "facts.json").read_text())
    assert not found["escaped"], found["escaped"]
    return Straight(found["facts"], found["points"], time.monotonic() - began)


def chain(work: str, folder: Path, kills: Sequence[Kill]) -> tuple[dict[str, Any], int]:
    """Let processes work one after the other in a new folder until one ends by itself.

    Args:
        work: name of a function in ``killed_works``.
        folder: made for it; all files of the work are below.
        kills: moments at which the first processes die, unless they are done before.

    Returns:
        Its facts, and the number of processes that were killed.

    Raises:
        AssertionError: if a process fails or hangs, with its traceback.
    """
    folder.mkdir()
    died = 0
    for kill in [*kills, Kill()]:
        if not _attempt(work, folder, kill):
            break
        died += 1
    assert died or not kills or not kills[0].point, f"{kills[0]} never came"
    return json.loads((folder / "facts.json").read_text())["facts"], died


def random_kills(draws: random.Random, number: int, seconds: float) -> list[Kill]:
    """Draw the moments of one chain, uniformly over the time of a straight run."""
    return [Kill(seconds=draws.uniform(0, seconds)) for _ in range(number)]


def differences(straight: Any, other: Any, where: str = "") -> list[str]:
    """Compare facts; name each place where they differ."""
    if isinstance(straight, dict) and isinstance(other, dict):
        keys = sorted(straight.keys() | other.keys())
        pairs = [(f"{where}/{key}", straight.get(key), other.get(key)) for key in keys]
    elif isinstance(straight, list) and isinstance(other, list):
        both = zip_longest(straight, other)
        pairs = [(f"{where}/{i}", one, two) for i, (one, two) in enumerate(both)]
    else:
        texts = (repr(facts)[:100] for facts in (straight, other))
        return [] if straight == other else [f"{where}: {' became '.join(texts)}"]
    return [line for place, one, two in pairs for line in differences(one, two, place)]


def _attempt(work: str, folder: Path, kill: Kill) -> bool:
    """Fork a process that does the work; return ``True`` if it was killed."""
    process = multiprocessing.get_context("fork").Process(
        target=_work, args=(getattr(killed_works, work), folder, kill.point)
    )
    process.start()
    process.join(LIMIT if kill.seconds is None else kill.seconds)
    hung = process.exitcode is None and kill.seconds is None
    process.kill()
    process.join()
    failure = folder / "failure.txt"
    assert not hung, f"{work}, {kill}: it hung for {LIMIT} seconds"
    assert not failure.exists(), f"{work}, {kill}: {failure.read_text()}"
    assert process.exitcode in (0, -signal.SIGKILL), f"{work}, {kill}: {process.exitcode}"
    return process.exitcode != 0


def _work(do: Callable[[Path, "Points"], dict[str, Any]], folder: Path, point: int) -> None:
    """Do a work in this process, which dies at a point; note its facts."""
    sys.dont_write_bytecode = True  # What is imported late changes no file.
    points = Points(point)
    try:
        facts = do(folder, points)
        noted = {"facts": facts, "points": points.names, "escaped": points.escaped}
        points.note(folder / "facts.json", json.dumps(noted))
    except BaseException:
        points.note(folder / "failure.txt", traceback.format_exc())
    os._exit(0)


# --- Points: calls that change files --------------------------------------------------------------

_CALLS = (
    *("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "link", "symlink"),
    *("truncate", "ftruncate", "fsync", "write", "open"),
)
_ORIGINAL: Mapping[str, Callable[..., Any]] = {name: getattr(os, name) for name in _CALLS}
_OPEN = io.open
_FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.symlink")


@final
class Points:
    """Counts the calls of this process that change files, and ends it at a chosen one, from 1.

    Everything in Python that changes files goes through ``os`` or ``open``: these are wrapped.
    What would not is heard of through Python's audit events and noted as escaped.
    """

    def __init__(self, chosen: int) -> None:
        self.names: list[str] = []
        self.escaped: list[str] = []
        self._chosen = chosen
        self._away = 0
        for name in _CALLS:
            setattr(os, name, partial(self._call, name))
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

    def note(self, path: Path, text: str) -> None:
        """Write a file of this harness, which is no point."""
        with self.looking_away():
            beside = path.with_name(f"{path.name}.new")
            beside.write_text(text)
            beside.replace(path)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        original = _ORIGINAL[name]
        if name != "open" or args[1] & _FOR_WRITING:
            # An unfinished file has a random name: what it becomes says more.
            self.reach(f"{name} {_last_part(args[name == 'replace'])}")
        if name == "write":
            self.reach("half of write", lambda: original(args[0], args[1][: len(args[1]) // 2]))
        if name == "fsync":
            return None  # What a killed process has written is not lost, flushed or not.
        with self.looking_away():
            return original(*args, **kwargs)

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

    def write(self, data: Any) -> Any:
        self._points.reach("write")
        self._points.reach("half of write", lambda: self._write_half(data))
        return self._file.write(data)

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
