"""Records on disk: read, find, write and go on with them.

Every file is written beside its place and renamed into it: readers see whole files only. What was
cut off, or is damaged otherwise, is refused.
"""

import io
import json
import os
import shutil
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import final

from pydantic_core import from_json

from grace.base import strict_json
from grace.base.atomic import is_leftover, remove, write_text
from grace.base.errors import BusyError, DamagedError, GraceError, GraceWarning, not_there
from grace.base.files import inside, read_small, refuse_path
from grace.base.lock import exclusive
from grace.base.words import in_one_line, one_line
from grace.runs.model import RunInfo, RunRecord, TaskRecord

STATE = "state.safetensors"
"""As ``grace.methods.saved.FILE``, which imports torch."""
MAX_RECORDS = 10_000
"""The largest number of records that are read at once."""
MAX_BYTES = 128 * 2**20
"""The largest ``tasks.jsonl``: 50 tasks up to 1000 classes need half of it."""
MAX_INFO_BYTES = 2**23
"""The largest ``run.json``: some 100,000 class names."""
_MOST = {b",": 20_000_000, b'"': 500_000, b"{": 100_000, b"[": 200_000}
"""How often a character may stand in ``tasks.jsonl``: each stands for values, of which texts and
objects take tens of times their bytes in memory."""


def read_record(path: str | Path) -> RunRecord:
    """Read one run directory, finished, running or failed.

    Raises:
        GraceError: if the directory is no run, comes from a newer grace, or is damaged.
    """
    directory = Path(path)
    try:
        info = _read_info(directory / "run.json")
        return RunRecord(directory, info, _read_tasks(directory / "tasks.jsonl"))
    except DamagedError as error:
        raise GraceError(error.what, f"remove {directory} and run it again") from error


def _read_info(path: Path) -> RunInfo:
    try:
        raw = strict_json.parse(read_small(path, str(path), MAX_INFO_BYTES, given=True), str(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise GraceError(
            f"{path.parent} is no run (no run.json)", "give the directory that 'grace run' wrote"
        ) from error
    form = raw.get("format") if isinstance(raw, dict) else None
    if type(form) is not int:
        raise DamagedError(f"{path} is damaged: it names no format")
    known = RunInfo.model_fields["format"].default
    if form > known:
        raise GraceError(
            f"{path} has format {form}, this grace reads up to {known}", "upgrade grace"
        )
    return strict_json.checked(RunInfo, raw, str(path))


def _read_tasks(path: Path) -> tuple[TaskRecord, ...]:
    try:
        data = read_small(path, str(path), MAX_BYTES, given=True)
    except FileNotFoundError:
        return ()
    if any(len(data) > most and data.count(token) > most for token, most in _MOST.items()):
        raise DamagedError(f"{path} is damaged: it has too many values")
    tasks: list[TaskRecord] = []
    # Line by line: a copy of all lines would need as much memory again.
    for number, line in enumerate(io.BytesIO(data), start=1):
        what = f"line {number} of {path}"
        try:
            # In two steps: errors of ``model_validate_json`` hold a copy of the line each.
            raw = from_json(line, allow_inf_nan=False)
        except ValueError as error:
            raise DamagedError(f"{what} is damaged: {one_line(str(error), 200)}") from error
        task = strict_json.checked(TaskRecord, raw, what)
        if task.task != number:
            raise DamagedError(f"{what} is damaged: it is task {task.task}")
        tasks.append(task)
    return tuple(tasks)


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


def read_records(
    paths: Sequence[str | Path], num_whole: int = MAX_RECORDS
) -> tuple[list[RunRecord], list[str]]:
    """Read all runs at or below some paths, each once.

    Args:
        paths: run directories, or folders of them.
        num_whole: records after that many lose their confusion matrices; see
            ``without_confusion``.

    Returns:
        The records, and one line for each run that could not be read.

    Raises:
        GraceError: if a path holds no run, or no run is readable, or there are too many.
    """
    places = dict.fromkeys(place.resolve() for path in paths for place in find_runs(path))
    if len(places) > MAX_RECORDS:
        raise GraceError(f"{len(places)} runs are more than {MAX_RECORDS}", "give fewer of them")
    records, left_out = _read_all(places, num_whole)
    if not records:
        raise next(iter(left_out), GraceError("no run given"))
    return records, [str(error) for error in left_out]


def _read_all(
    places: Iterable[Path], num_whole: int
) -> tuple[list[RunRecord], list[GraceError | OSError]]:
    records: list[RunRecord] = []
    left_out: list[GraceError | OSError] = []
    for place in places:
        try:
            record = read_record(place)
            records.append(record if len(records) < num_whole else without_confusion(record))
        except (GraceError, OSError) as error:
            left_out.append(error)
    return records, left_out


def without_confusion(record: RunRecord) -> RunRecord:
    """Return a record without its confusion matrices, which take most of its memory."""
    tasks = (task.model_copy(update={"confusion": None}) for task in record.tasks)
    return replace(record, tasks=tuple(tasks))


def same_run(directory: Path | None, info: RunInfo) -> RunRecord | None:
    """Return the record of the same run that an earlier process began; ``None``: there is none.

    Args:
        directory: of the run; ``None``: the newest of the same run under ``runs/``.
        info: facts about the run here.

    Raises:
        GraceError: if the directory holds another run.

    Warns:
        GraceWarning: naming each run under ``runs/`` that cannot be read.
    """
    if directory is None:
        records, left_out = _read_all(_below(Path("runs")), 0)
        for error in left_out:
            warnings.warn(f"left out: {error}", GraceWarning, stacklevel=2)
        known = [record for record in records if _is_same(record.info, info)]
        if not known:
            return None
        directory = max(known, key=lambda record: record.info.started).directory
    if not (directory / "run.json").exists():
        return None
    record = read_record(directory)
    if not _is_same(record.info, info):
        then = record.info.versions
        other = [
            f"{name} {then.get(name)} (here {v})"
            for name, v in info.versions.items()
            if then.get(name) != v
        ]
        what = f"versions, {', '.join(other)}" if other else "settings or data"
        raise GraceError(
            f"{directory} holds a run made with other {what}",
            "choose another directory, or give what the run began with",
        )
    return record


def _is_same(one: RunInfo, other: RunInfo) -> bool:
    return one.fingerprints.get("run") == other.fingerprints["run"]


def noted_rounding(info: RunInfo, earlier: RunRecord | None) -> RunInfo:
    """Note in a record, and warn, that the run goes on where the last digits may differ.

    Args:
        info: facts about the run here.
        earlier: the interrupted run, if there was one; its notes are kept.
    """
    if earlier is None or not earlier.tasks:
        return info
    was, here = (
        {
            **{name: own.hardware.get(name) for name in ("cpu", "gpu", "threads", "processes")},
            **{name: own.section("engine").get(name) for name in ("channels_last", "compile")},
        }
        for own in (earlier.info, info)
    )
    changed = [
        f"{name} {here[name]} (before: {was[name]})" for name in here if here[name] != was[name]
    ]
    notes = dict.fromkeys([*info.notes, *earlier.info.notes])
    if changed:
        note = f"the run went on with {', '.join(changed)}: its last digits may differ"
        warnings.warn(note, GraceWarning, stacklevel=2)
        notes[note] = None
    return info.model_copy(update={"notes": tuple(notes)})


def tidy(directory: Path) -> None:
    """Remove what the process of a finished run left if it was killed at its very end.

    A process that still has the run locked removes it itself.

    Raises:
        OSError: if something cannot be removed.
    """
    if (directory / "lock").exists():
        with suppress(BusyError), exclusive(directory / "lock", f"the run '{directory}'"):
            drop_checkpoint(inside(directory, "checkpoint"))
            (directory / "lock").unlink()


def drop_checkpoint(checkpoint: Path) -> None:
    """Remove the state of a run, which nobody needs after the run's end."""
    # This file is removed first: without it the run begins anew.
    remove(checkpoint / STATE)
    shutil.rmtree(checkpoint, ignore_errors=True)


def refuse_occupied(directory: Path) -> None:
    """Refuse a directory for a new run if it holds more than a lock and unfinished files."""
    if directory.exists() and (
        not directory.is_dir()
        or any(path.name != "lock" and not is_leftover(path) for path in directory.iterdir())
    ):
        raise GraceError(f"{directory} exists already", "choose another directory or remove it")


def run_directory(root: Path, info: RunInfo) -> Path:
    """Name a new run: ``<root>/<experiment>/<method>-s<seed>-<YYYYmmdd-HHMMSS>-<fp8>``.

    The seed is that of the initialisation, the time that of the start, ``fp8`` the first eight
    digits of the run's fingerprint.

    Raises:
        GraceError: if the experiment's name is a path.
    """
    experiment = refuse_path(info.experiment, "the experiment's name")
    started = datetime.fromisoformat(info.started).strftime("%Y%m%d-%H%M%S")
    fingerprint = info.fingerprints["run"][:8]
    run = RunRecord(root, info, ())
    return root / experiment / f"{run.method}-s{run.seed}-{started}-{fingerprint}"


@final
class RecordWriter:
    """Writes the record of one run into the run's directory.

    Args:
        directory: the run's directory; created if it does not exist. It must be empty unless
            ``interrupted`` is given.
        info: the facts about the run.
        interrupted: the record that an earlier process of the same run left in the directory.

    Raises:
        GraceError: if the directory is not empty; nothing in it is changed.
        OSError: if it cannot be written.
    """

    def __init__(
        self, directory: Path, info: RunInfo, interrupted: RunRecord | None = None
    ) -> None:
        if interrupted is None:
            refuse_occupied(directory)
            directory.mkdir(parents=True, exist_ok=True)
        else:
            info = info.model_copy(update={"started": interrupted.info.started})
        self.record = RunRecord(directory, info, interrupted.tasks if interrupted else ())
        """The record so far."""
        self._write_info()

    def append_task(self, task: TaskRecord) -> None:
        """Add the line of the next task; later ones, of an earlier process, are dropped."""
        tasks = (*self.record.tasks[: task.task - 1], task)
        assert task.task == len(tasks)
        lines = [_json(entry.model_dump(mode="json")) for entry in tasks]
        write_text(self.record.directory / "tasks.jsonl", "".join(f"{line}\n" for line in lines))
        self.record = replace(self.record, tasks=tasks)

    def finish(self) -> RunRecord:
        """Mark the run as finished and return its record."""
        return self._end(status="finished")

    def fail(self, error: BaseException | str) -> RunRecord:
        """Mark the run as failed, with the error in one line, and return its record."""
        return self._end(status="failed", error=in_one_line(error))

    def _end(self, **ending: str) -> RunRecord:
        info = self.record.info.model_copy(update={**ending, "finished": now()})
        self.record = replace(self.record, info=info)
        self._write_info()
        return self.record

    def _write_info(self) -> None:
        text = _json(self.record.info.model_dump(mode="json"), indent=1)
        write_text(self.record.directory / "run.json", f"{text}\n")


def _json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
