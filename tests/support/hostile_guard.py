"""What a piece of work opens, changes and runs, how long it takes, and how much memory."""

import os
import resource
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

# Work of another kind than reading and writing files: never any part of it.
FORBIDDEN = (
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.startfile",
    "subprocess.Popen",
    "pty.spawn",
    "socket.",
    "urllib.",
    "http.",
    "ftplib.",
    "pickle.find_class",
    "marshal.",
    "ctypes.",
    "webbrowser.",
    "compile",
    "exec",
    "import",
)
# Their arguments begin with so many paths; the last is the folder that they are relative to.
CHANGES = {
    "os.remove": 1,
    "os.rename": 2,
    "os.mkdir": 1,
    "os.rmdir": 1,
    "os.link": 2,
    "os.symlink": 2,
    "os.truncate": 1,
    "os.chmod": 1,
    "os.chown": 1,
    "os.utime": 1,
    "os.setxattr": 1,
    "os.removexattr": 1,
    "os.mknod": 1,
    "os.mkfifo": 1,
}
LISTS = ("os.listdir", "os.scandir", "os.walk", "glob.glob", "shutil.rmtree")
MEGABYTE = 2**20


class TooSlowError(BaseException):
    """The time is over; no handler of errors may take it for one."""


class Guard:
    """Notes what is done while it watches. One per process: audit hooks stay.

    Args:
        model: folder that may be read, and written where that is the work.
    """

    def __init__(self, model: Path) -> None:
        self._model = os.path.realpath(model)
        # Where the program and its libraries are, and what the system tells about the machine.
        source = Path(__file__).parents[2]
        roots = [sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev/null"]
        roots += [str(source / "src"), str(source / "tests")]
        self._readable = tuple(os.path.realpath(root) for root in roots)
        self._seen: list[str] | None = None
        self._may_write = False
        self._known_code: set[bytes] = set()
        """What torch.fx makes of a sound learner's modules when batch norm is folded."""
        self.is_learning = True
        """Whether the work is known to be sound."""
        self._is_over = True
        sys.addaudithook(self._hear)
        for number in (signal.SIGALRM, signal.SIGPROF):
            signal.signal(number, self._stop)

    @contextmanager
    def watching(self, *, may_write: bool, seconds: float = 10.0) -> Iterator[list[str]]:
        """Watch some work: gives the list of what it does wrong, by which it grows.

        Args:
            may_write: whether the model may be changed.
            seconds: of computing that it may take, and six times as many in all: the machine may
                be busy, but nothing may wait forever.
        """
        wrong: list[str] = []
        forget_peak()
        peak = peak_bytes()
        self._may_write, self._seen, self._is_over = may_write, wrong, False
        limit_memory(2**30)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        signal.setitimer(signal.ITIMER_REAL, 6 * seconds)
        try:
            yield wrong
        except TooSlowError:
            wrong.append(f"took more than {seconds:g} s")
        finally:
            self._is_over = True
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.setitimer(signal.ITIMER_REAL, 0)
            limit_memory(None)
            self._seen = None
        grown = (peak_bytes() - peak) // MEGABYTE
        if grown > 500:
            wrong.append(f"took {grown} MB more memory")

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if not self._is_over:
            self._is_over = True  # Of two signals one is enough.
            raise TooSlowError

    def _hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._seen is None:
            return
        wrong, self._seen = self._seen, None  # What follows is not the work's.
        try:
            wrong.extend(self._judged(event, arguments))
        finally:
            self._seen = wrong

    def _judged(self, event: str, arguments: tuple[Any, ...]) -> Iterator[str]:
        if event.startswith(FORBIDDEN) and not self._is_library(event, arguments):
            yield f"{event}{arguments!r:.300}"
        elif event == "open":
            path, _, flags = arguments
            changes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
            if not changes and _is_removing(path):
                return
            yield from self._touched(event, path, None, changes=bool(changes))
        elif event in CHANGES:
            for path in arguments[: CHANGES[event]]:
                yield from self._touched(event, path, arguments[-1], changes=True)
        elif event in LISTS and arguments[0] is not None:
            yield from self._touched(event, arguments[0], None, changes=False)

    def _touched(self, event: str, path: Any, folder: Any, *, changes: bool) -> Iterator[str]:
        if isinstance(path, int):
            if not changes:
                return  # It was opened by name before.
            path = Path(f"/proc/self/fd/{path}").readlink()
        name = os.fsdecode(path)
        if isinstance(folder, int) and folder >= 0:
            name = str(Path(f"/proc/self/fd/{folder}").readlink() / name)
        elif event == "open" and not changes and "/" not in name and not os.path.lexists(name):
            # Relative to a folder's handle, which the event does not tell; where this process
            # works there is no such file that could be read.
            return
        # Where the file really is; a link itself is what is removed or renamed.
        path = Path(name).absolute()
        real = str(path.parent.resolve() / path.name)
        if event == "open" or event in LISTS:
            real = os.path.realpath(name)
        if _is_below(real, (self._model,)):
            if changes and not self._may_write:
                yield f"{event} changes {name!r}"
        elif changes or not _is_below(real, self._readable):
            yield f"{event} leaves the model: {name!r} is {real!r}"

    def _is_library(self, event: str, arguments: tuple[Any, ...]) -> bool:
        """Whether code is run because a library's own file says so."""
        if event == "import":
            return True  # Its file is opened, and that is judged.
        if event == "compile":
            source, name = arguments
            # A syntax tree has no name here; what runs of it is judged by the file it is of.
            is_of_a_method = name is None and _is_called_by("settings/method_files.py")
            return is_of_a_method or self._is_readable(name) or self._is_known(name, source)
        if event == "exec":
            name = arguments[0].co_filename
            return self._is_readable(name) or name.startswith("<eval_with_key>")
        # Compiled modules of libraries.
        return event == "marshal.loads" or (
            event == "ctypes.dlopen" and self._is_readable(arguments[0])
        )

    def _is_known(self, name: Any, source: Any) -> bool:
        if not str(name).startswith("<eval_with_key>") or not isinstance(source, bytes):
            return False
        if self.is_learning:
            self._known_code.add(source)
        return source in self._known_code

    def _is_readable(self, name: Any) -> bool:
        return isinstance(name, str | bytes) and _is_below(
            os.path.realpath(os.fsdecode(name)), self._readable
        )


def _is_called_by(place: str) -> bool:
    frame: FrameType | None = sys._getframe()
    while frame and not frame.f_code.co_filename.endswith(f"src/grace/{place}"):
        frame = frame.f_back
    return frame is not None


def _is_below(path: str, roots: tuple[str, ...]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def _is_removing(path: Any) -> bool:
    """Whether a folder's tree is being removed, which opens folders in it by their bare names.

    The event does not tell in which folder; what is then removed is judged with its folder.
    """
    if isinstance(path, int) or os.sep in os.fsdecode(path):
        return False
    frame: FrameType | None = sys._getframe()
    while frame and frame.f_code.co_filename != shutil.__file__:
        frame = frame.f_back
    return frame is not None and "rmtree" in frame.f_code.co_name


def peak_bytes() -> int:
    """Return the most memory that this process has had since it was last forgotten."""
    # Not getrusage: a child starts with the peak of the process that made it.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def forget_peak() -> None:
    """Let the peak be what is in use now, where the system lets us."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def limit_memory(more_bytes: int | None) -> None:
    """Refuse this process more address space than it has by so much; none lifts the limit."""
    limit = resource.RLIM_INFINITY
    if more_bytes is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
