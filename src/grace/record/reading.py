"""Read records; a last line that was cut off is tolerated, anything else damaged is refused."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from grace.record.model import RunInfo, RunRecord, TaskRecord
from grace.text.refusals import GraceError
from grace.text.validation import first_problem


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


def find_runs(path: str | Path) -> list[Path]:
    """List the run directories at or below a path, sorted.

    Raises:
        GraceError: if there is none.
    """
    root = Path(path)
    if (root / "run.json").is_file():
        return [root]
    found = sorted(file.parent for file in root.rglob("run.json")) if root.is_dir() else []
    if not found:
        what = "holds no run (no run.json)" if root.is_dir() else "is no directory"
        raise GraceError(f"{root} {what}", "give a run directory or a folder of them")
    return found


def find_same_run(root: Path, info: RunInfo) -> RunRecord | None:
    """Return the newest record below ``root`` with the same fingerprint; ``None``: there is none.

    Runs that cannot be read are ignored.
    """
    found: list[RunRecord] = []
    for directory in find_runs(root) if any(root.rglob("run.json")) else []:
        with suppress(ValueError):
            record = read_record(directory)
            if record.info.fingerprints.get("run") == info.fingerprints["run"]:
                found.append(record)
    return max(found, key=lambda record: record.info.started, default=None)


def read_records(paths: Sequence[str | Path]) -> tuple[list[RunRecord], list[str]]:
    """Read all runs at or below some paths, each once.

    Returns:
        The records, and one line for each run below a path that could not be read.

    Raises:
        GraceError: if a path holds no run, a run given directly is damaged, or no run is readable.
    """
    records: dict[Path, RunRecord] = {}
    left_out: list[str] = []
    for path in paths:
        for directory in find_runs(path):
            if directory.resolve() in records:
                continue
            try:
                records[directory.resolve()] = read_record(directory)
            except GraceError as error:
                if directory == Path(path):
                    raise
                left_out.append(str(error))
    if not records:
        raise GraceError(left_out[0] if left_out else "no run given")
    return list(records.values()), left_out


def _read_info(directory: Path) -> RunInfo:
    path = directory / "run.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise GraceError(
            f"{directory} is no run (no run.json)", "give the directory that 'grace run' wrote"
        ) from error
    except ValueError as error:
        raise GraceError(f"{path} is damaged: {error}", "run it again") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("format"), int):
        raise GraceError(f"{path} is damaged: it names no format", "run it again")
    known = RunInfo.model_fields["format"].default
    if raw["format"] > known:
        raise GraceError(
            f"{path} has format {raw['format']}, this grace reads up to {known}", "upgrade grace"
        )
    try:
        return RunInfo.model_validate(raw)
    except ValidationError as error:
        raise GraceError(f"{path} is damaged: {first_problem(error)}", "run it again") from error


def _read_tasks(path: Path) -> tuple[tuple[TaskRecord, ...], bool]:
    if not path.exists():
        return (), False
    lines = path.read_bytes().split(b"\n")
    ended = lines[-1] == b""
    lines = lines[:-1] if ended else lines
    tasks: list[TaskRecord] = []
    for number, line in enumerate(lines, start=1):
        try:
            tasks.append(_parse(line, number))
        except ValueError as error:
            if number == len(lines) and not ended:
                return tuple(tasks), True
            raise GraceError(f"{path} is damaged at line {number}: {error}") from error
    return tuple(tasks), False


def _parse(line: bytes, number: int) -> TaskRecord:
    raw: Any = json.loads(line)
    try:
        task = TaskRecord.model_validate(raw)
    except ValidationError as error:
        raise GraceError(first_problem(error)) from error
    if task.task != number:
        raise GraceError(f"it is task {task.task} where task {number} should be")
    return task
