"""Read records; a last line that was cut off is tolerated, anything else damaged is refused."""

import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from grace.base import strict_json
from grace.base.errors import DamagedError, GraceError, GraceWarning, first_problem, not_there
from grace.base.files import read_given
from grace.methods.outcome import MethodVerdict
from grace.runs import metrics
from grace.runs.model import RunInfo, RunRecord, TaskRecord

MAX_BYTES = 128 * 2**20
"""The largest file of a record: 50 tasks up to 1000 classes need half of it."""
_MOST = {b",": 40_000_000, b"[": 2_000_000, b"{": 500_000}
"""How often a character may stand in ``tasks.jsonl``: each stands for values, which need memory."""

_TOLERANCE = 0.01
"""Accuracies (%) that differ by less are the same; records do not round them."""
_ADDED: Mapping[MethodVerdict | None, int] = {
    "grow": 1,
    "compress": 0,
    "compress (budget)": 0,
    "refresh": 0,
    "train": 0,
}
"""How many backbones a verdict adds."""


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
        return read_given(path, str(path), MAX_BYTES).count(b"\n")
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


def _read_info(directory: Path) -> RunInfo:
    path = directory / "run.json"
    try:
        raw = strict_json.parse(read_given(path, str(path), MAX_BYTES), str(path), MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise GraceError(
            f"{directory} is no run (no run.json)", "give the directory that 'grace run' wrote"
        ) from error
    except DamagedError as error:
        raise GraceError(error.what, f"remove {directory} and run it again") from error
    if not isinstance(raw, dict) or type(raw.get("format")) is not int:
        raise GraceError(
            f"{path} is damaged: it names no format", f"remove {directory} and run it again"
        )
    known = RunInfo.model_fields["format"].default
    if raw["format"] > known:
        raise GraceError(
            f"{path} has format {raw['format']}, this grace reads up to {known}", "upgrade grace"
        )
    try:
        return RunInfo.model_validate(raw)
    except ValidationError as error:
        raise GraceError(
            f"{path} is damaged: {first_problem(error)}", f"remove {directory} and run it again"
        ) from error


def _read_tasks(path: Path) -> tuple[tuple[TaskRecord, ...], bool]:
    try:
        data = read_given(path, str(path), MAX_BYTES)
    except FileNotFoundError:
        return (), False
    if any(len(data) > most and data.count(token) > most for token, most in _MOST.items()):
        raise GraceError(
            f"{path} is damaged: it has too many values", f"remove {path.parent} and run it again"
        )
    lines = data.split(b"\n")
    ended = lines[-1] == b""
    lines = lines[:-1] if ended else lines
    tasks: list[TaskRecord] = []
    sizes: list[int] = []
    for number, line in enumerate(lines, start=1):
        task = None
        try:
            task = _parse(line, number)
            sizes.append(task.num_new)
            _refuse_other_accuracies(task, sizes)
            _refuse_other_backbones(task, tasks)
        except GraceError as error:
            if task is None and number == len(lines) and not ended:
                return tuple(tasks), True
            raise GraceError(
                f"{path} is damaged at line {number}: {error.what}",
                f"remove {path.parent} and run it again",
            ) from error
        tasks.append(task)
    return tuple(tasks), False


def _parse(line: bytes, number: int) -> TaskRecord:
    try:
        task = TaskRecord.model_validate_json(line)  # It reads numbers twice as fast as json.
    except ValidationError as error:
        raise GraceError(first_problem(error)) from error
    if task.task != number:
        raise GraceError(f"it is task {task.task} where task {number} should be")
    return task


def _refuse_other_accuracies(task: TaskRecord, sizes: Sequence[int]) -> None:
    """Refuse a task whose accuracies are not those of its confusion matrix.

    Args:
        task: as read.
        sizes: number of new classes of each task up to this one.
    """
    given = task.accuracy
    if given is None or task.confusion is None:
        return
    per_task = metrics.per_task_accuracy(task.confusion, sizes)
    old, new = metrics.old_new_accuracy(task.confusion, sum(sizes[:-1]))
    pairs = {
        "all": (given.all, metrics.overall_accuracy(task.confusion)),
        "old": (given.old, old),
        "new": (given.new, new),
        **{
            f"per_task[{i}]": pair
            for i, pair in enumerate(zip(given.per_task, per_task, strict=True))
        },
    }
    for name, (value, counted) in pairs.items():
        if value is not None and abs(value - (counted or 0.0)) > _TOLERANCE:
            found = "none" if counted is None else f"{counted:.4g} %"
            raise GraceError(f"{name} is {value} %, its confusion matrix gives {found}")


def _refuse_other_backbones(task: TaskRecord, before: Sequence[TaskRecord]) -> None:
    """Refuse a task whose number of backbones is not what its verdict makes of those before."""
    added = _ADDED.get(task.verdict)
    if before and added is not None and task.backbones != before[-1].backbones + added:
        raise GraceError(
            f"its verdict is '{task.verdict}', and its backbones go from {before[-1].backbones} "
            f"to {task.backbones}"
        )
