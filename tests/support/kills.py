"""Processes that are killed while they work, and whether what comes out is as if none had been.

A *work* (``killed_works.py``) is a function of a folder. It goes on where an earlier process of the
same work stopped, and ends by noting its *facts*: everything that must not depend on kills. A
*chain* gives one work to one process after another: each is killed by SIGKILL at its moment, and
the last one ends by itself. A moment is

* a time: seconds after the process began to work, or
* a point: every call that changes a file, in the order in which a process makes them. The process
  dies just before the call; at a write there is a second point, halfway through its bytes. After a
  call nothing changes before the next one, so dying after it is dying before that.

The processes are forks of a ``Server``, which has imported torch and runs no thread of its own.
"""

import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self, final

from support.kill_points import ORIGINAL, Points

LIMIT = 900.0
"""Seconds after which a process that nobody kills counts as hung; a busy machine takes minutes."""

_points = Points()
"""Of this process, once it is one that works."""


@final
@dataclass(frozen=True)
class Kill:
    """When a process is killed: so many seconds after it began, or at its n-th point, from 1."""

    seconds: float | None = None
    point: int | None = None


@final
@dataclass(frozen=True)
class Straight:
    """A work that one process did undisturbed."""

    facts: dict[str, Any]
    points: Sequence[str]
    """What each point is, in order."""
    seconds: float


@final
@dataclass(frozen=True)
class Chain:
    """A work that took several processes."""

    facts: dict[str, Any]
    num_killed: int


# --- In the process that asks ---------------------------------------------------------------------


@final
class Server:
    """Forks a process for each attempt at a work; a context manager."""

    def __init__(self) -> None:
        code = "import sys; sys.path[:0] = sys.argv[1:]; from support import kills; kills.serve()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, str(Path(__file__).parents[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def straight(self, work: str, folder: Path) -> Straight:
        """Let one process do a work in a new folder, and name all its points.

        Raises:
            AssertionError: if it fails, or changes a file in a way that counts as no point.
        """
        folder.mkdir()
        # No process gets to point 0: this one only counts.
        answer = self._ask(work=work, folder=str(folder), seconds=None, point=0)
        found = json.loads((folder / "points.json").read_text())
        assert not found["escaped"], found["escaped"]
        return Straight(_facts(folder), found["names"], answer["seconds"])

    def chain(self, work: str, folder: Path, kills: Sequence[Kill]) -> Chain:
        """Let processes work one after the other in a new folder until one ends by itself.

        Args:
            work: name of a function in ``killed_works``.
            folder: made for it; all files of the work are below.
            kills: moments at which the first processes die, unless they are done before.

        Raises:
            AssertionError: if a process fails or hangs, with its traceback.
        """
        folder.mkdir()
        died = 0
        for kill in [*kills, Kill()]:
            answer = self._ask(work=work, folder=str(folder), **vars(kill))
            died += answer["killed"]
            if not answer["killed"]:
                break
        assert died or not kills or kills[0].point is None, f"{kills[0]} never came"
        return Chain(_facts(folder), died)

    def _ask(self, **order: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert not answer["failure"], f"{order}: {answer['failure']}"
        return answer


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


def _facts(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / "facts.json").read_text())
    return facts


# --- In the server --------------------------------------------------------------------------------


def serve() -> None:
    """Fork a process for every order on standard input; answer on standard output."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Whatever a process prints is no answer.
    from support import killed_works

    # A fork has only the thread that forks: no other may be at work, or hold a lock.
    assert threading.active_count() == 1
    tasks = Path("/proc/self/task")
    assert not tasks.is_dir() or len(list(tasks.iterdir())) == 1
    for line in sys.stdin:
        order = json.loads(line)
        do = getattr(killed_works, order.pop("work"))
        print(json.dumps(_attempt(do, **order)), file=answers, flush=True)
    shutil.rmtree(common_folder(os.getpid()), ignore_errors=True)
    os._exit(0)  # Nothing here needs torch's slow farewell.


def _attempt(
    do: Callable[[Path], None], folder: str, seconds: float | None, point: int | None
) -> dict[str, Any]:
    """Fork a process that does the work, kill it in time, and say how it ended."""
    hears, tells = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(hears)
        os._exit(_work(do, Path(folder), point, tells))
    os.close(tells)
    os.read(hears, 1)  # It begins.
    began = time.monotonic()
    # The other end closes with the process.
    over, _, _ = select.select([hears], [], [], LIMIT if seconds is None else seconds)
    if not over:
        os.kill(child, signal.SIGKILL)
    ended = time.monotonic()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(hears)
    failure = ""
    if status not in (0, -signal.SIGKILL):
        told = Path(folder) / "failure.txt"
        failure = told.read_text() if told.exists() else f"it ended with status {status}"
    elif not over and seconds is None:
        failure = f"it hung for {LIMIT} seconds"
    return {"killed": status != 0, "seconds": ended - began, "failure": failure}


# --- In the process that works --------------------------------------------------------------------


def _work(do: Callable[[Path], None], folder: Path, point: int | None, tells: int) -> int:
    try:
        if point is not None:
            _points.watch(point)
        ORIGINAL["write"](tells, b".")
        do(folder)
        if point is not None:
            found = {"names": _points.names, "escaped": _points.escaped}
            note(folder / "points.json", found)
    except BaseException:
        note(folder / "failure.txt", traceback.format_exc())
        return 1
    return 0


def note(path: Path, facts: object) -> None:
    """Write a file of this harness, which is no point."""
    with _points.looking_away():
        beside = path.with_name(f"{path.name}.new")
        text = facts if isinstance(facts, str) else json.dumps(facts)
        beside.write_text(text)
        beside.replace(path)


@contextmanager
def looking_away() -> Iterator[None]:
    """Prepare something: nothing in the context is a point."""
    with _points.looking_away():
        yield


def common_folder(server: int | None = None) -> Path:
    """Return the folder that all processes of one server share, made if it is missing.

    Args:
        server: the server's process; ``None``: the parent of this process.
    """
    place = Path(tempfile.gettempdir(), f"killed-works-{server or os.getppid()}")
    place.mkdir(exist_ok=True)
    return place


def mark(folder: Path, number: int) -> None:
    """Note that so many calls of a work have returned: further processes begin with the next."""
    _points.reach("mark")
    note(folder / "returned.txt", str(number))


def marked(folder: Path) -> int:
    """Return how many calls have returned."""
    path = folder / "returned.txt"
    return int(path.read_text()) if path.exists() else 0
