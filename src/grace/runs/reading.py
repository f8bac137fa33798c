"""Read records; a last line that was cut off is tolerated, anything else damaged is refused."""

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import from_json

from grace.base import strict_json
from grace.base.errors import DamagedError, GraceError, GraceWarning, first_problem, not_there
from grace.base.files import read_small
from grace.base.words import one_line
from grace.runs.model import RunInfo, RunRecord, TaskRecord

MAX_BYTES = 128 * 2**20
"""The largest ``tasks.jsonl``: 50 tasks up to 1000 classes need half of it."""
MAX_INFO_BYTES = 2**23
"""The largest ``run.json``: some 100,000 class names."""
_MOST = {b",": 20_000_000, b'"': 500_000, b"{": 100_000, b"[": 200_000}
"""How often a character may stand in ``tasks.jsonl``: each stands for values, of which texts and
objects take tens of times their bytes in memory."""


def read_record(path: str | Path) -> RunRecord:
    """Read one run directory, finished, running or failed.

    A last line of ``tasks.jsonl`` that was cut off is left out and ``torn`` says so.

    Raises:
        GraceError: if the directory is no run, comes from a newer grace, or is damaged.
    """
    directory = Path(path)
    info = _read_info(directory)
    tasks, torn = _read_tasks(directory / "tasks.jsonl")
    return RunRecord(directory, info, tasks, torn)


def num_tasks(directory: Path) -> int:
    """Return the number of finished tasks of a run that may be running; 0 if it is unreadable."""
    path = directory / "tasks.jsonl"
    with suppress(GraceError, OSError):
        return read_small(path, str(path), MAX_BYTES, given=True).count(b"\n")
    return 0


def find_runs(path: str | Path) -> list[Path]:
    """List the run directories at or below a path, sorted.

    Raises:
        GraceError: if there is none.
    """
    root = Path(path)
    if (root / "run.json").is_file():
        return [root]
    found = _below(root)
    if not found:
        if not root.exists():
            raise not_there(root)
        what = "holds no run (no run.json)" if root.is_dir() else "is no directory"
        raise GraceError(f"'{root}' {what}", "give a run directory or a folder of them")
    return found


def find_same_run(root: Path, info: RunInfo) -> RunRecord | None:
    """Return the newest record below ``root`` with the same fingerprint; ``None``: there is none.

    Warns:
        GraceWarning: naming each run that cannot be read.
    """
    found: list[RunRecord] = []
    for directory in _below(root):
        try:
            record = read_record(directory)
        except (GraceError, OSError) as error:
            warnings.warn(f"left out: {error}", GraceWarning, stacklevel=2)
            continue
        if record.info.fingerprints.get("run") == info.fingerprints["run"]:
            found.append(record)
    return max(found, key=lambda record: record.info.started, default=None)


def _below(root: Path) -> list[Path]:
    """List the directories with a ``run.json`` at or below a path, sorted; any depth is walked."""
    found: list[Path] = []
    waiting = [str(root)]
    while waiting:
        folder = waiting.pop()
        # A folder that cannot be read holds no run that could be read.
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name == "run.json":
                    found.append(Path(folder))
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
    return sorted(found)


def read_records(paths: Sequence[str | Path]) -> tuple[list[RunRecord], list[str]]:
    """Read all runs at or below some paths, each once.

    Returns:
        The records, and one line for each run that could not be read.

    Raises:
        GraceError: if a path holds no run, or no run is readable.
    """
    records: dict[str, RunRecord] = {}
    left_out: dict[str, GraceError | OSError] = {}
    for path in paths:
        for directory in find_runs(path):
            place = os.path.realpath(directory)
            if place in records or place in left_out:
                continue
            try:
                records[place] = read_record(directory)
            except (GraceError, OSError) as error:
                left_out[place] = error
    if not records:
        raise next(iter(left_out.values()), GraceError("no run given"))
    return list(records.values()), [str(error) for error in left_out.values()]


@contextmanager
def _naming(place: str, directory: Path) -> Iterator[None]:
    """Say of what cannot be read where it stands, and what to do."""
    try:
        yield
    except GraceError as error:
        if not isinstance(error, DamagedError):
            raise
        what = error.what
        text = what if what.startswith(place) else f"{place}: {what}"
        raise GraceError(text, f"remove {directory} and run it again") from error
    except ValueError as error:  # Of pydantic's, or of its JSON.
        what = one_line(str(error), 200)
        what = first_problem(error) if isinstance(error, ValidationError) else what
        raise GraceError(f"{place}: {what}", f"remove {directory} and run it again") from error


def _read_info(directory: Path) -> RunInfo:
    path = directory / "run.json"
    with _naming(f"{path} is damaged", directory):
        try:
            data = read_small(path, str(path), MAX_INFO_BYTES, given=True)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise GraceError(
                f"{directory} is no run (no run.json)", "give the directory that 'grace run' wrote"
            ) from error
        raw = strict_json.parse(data, str(path))
        form = raw.get("format") if isinstance(raw, dict) else None
        if type(form) is not int:
            raise DamagedError("it names no format")
        known = RunInfo.model_fields["format"].default
        if form > known:
            raise GraceError(
                f"{path} has format {form}, this grace reads up to {known}", "upgrade grace"
            )
        return RunInfo.model_validate(raw)


def _read_tasks(path: Path) -> tuple[tuple[TaskRecord, ...], bool]:
    """Read the tasks, and ``True`` if the last line was cut off."""
    try:
        data = read_small(path, str(path), MAX_BYTES, given=True)
    except FileNotFoundError:
        return (), False
    with _naming(f"{path} is damaged", path.parent):
        if any(len(data) > most and data.count(token) > most for token, most in _MOST.items()):
            raise DamagedError("it has too many values")
    tasks: list[TaskRecord] = []
    start = 0
    while start < len(data):  # Line by line: a copy of all lines would need as much memory again.
        end = data.find(b"\n", start)
        line = data[start : end if end >= 0 else None]
        number = len(tasks) + 1
        with _naming(f"{path} is damaged at line {number}", path.parent):
            try:
                # In two steps: errors of ``model_validate_json`` hold a copy of the line each.
                task = TaskRecord.model_validate(from_json(line, allow_inf_nan=False))
            except ValueError:
                if end < 0:
                    return tuple(tasks), True
                raise
            if task.task != number:
                raise DamagedError(f"it is task {task.task} where task {number} should be")
        tasks.append(task)
        start = end + 1 if end >= 0 else len(data)
    return tuple(tasks), False
