"""Write records: whole files only, one line per task."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, final

from grace.base.atomic import is_leftover, write_text
from grace.base.errors import GraceError
from grace.base.files import refuse_path
from grace.base.words import in_one_line
from grace.runs.model import DatasetRecord, RunInfo, RunRecord, TaskRecord
from grace.runs.provenance import collect_hardware, collect_versions, commit, fingerprints
from grace.settings.experiment import ExperimentSettings


def describe_run(
    settings: ExperimentSettings,
    *,
    class_names: Sequence[str],
    task_sizes: Sequence[int],
    dataset: DatasetRecord,
    data_digest: str,
    device: str,
    threads: int,
    gpu: str | None = None,
    processes: int = 1,
    notes: Sequence[str] = (),
) -> RunInfo:
    """Collect the facts about a run at its start.

    Args:
        settings: the resolved settings.
        class_names: names by class index (position in the class order).
        task_sizes: number of new classes of each task.
        dataset: the images.
        data_digest: hex digest of the data files.
        device: "cpu" or "cuda".
        threads: number of torch's CPU threads.
        gpu: the GPU's name, if any.
        processes: number of processes that work together.
        notes: lines for people, such as counted duplicates.
    """
    versions = collect_versions()
    return RunInfo(
        experiment=settings.name,
        description=settings.description,
        config=settings.model_dump(mode="json"),
        versions=versions,
        commit=commit(),
        hardware=collect_hardware(device, threads, gpu, processes),
        fingerprints=fingerprints(settings, data_digest, versions),
        started=_now(),
        class_names=tuple(class_names),
        task_sizes=tuple(task_sizes),
        notes=tuple(notes),
        dataset=dataset,
    )


def refuse_occupied(directory: Path) -> None:
    """Refuse a directory for a new run if it holds more than a lock and unfinished files.

    Raises:
        GraceError: if it holds more.
    """
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
    return root / experiment / f"{info.method}-s{info.seed}-{started}-{fingerprint}"


@final
class RecordWriter:
    """Writes the record of one run into the run's directory.

    Every file is written beside its place and renamed into it: readers see whole files only.

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
        self.directory = directory
        self._info = info
        self._tasks: list[TaskRecord] = list(interrupted.tasks) if interrupted else []
        if interrupted is None:
            refuse_occupied(directory)
            directory.mkdir(parents=True, exist_ok=True)
        else:
            self._info = info.model_copy(update={"started": interrupted.info.started})
        self._write_info()

    def append_task(self, task: TaskRecord) -> None:
        """Add the line of the next task."""
        assert task.task == len(self._tasks) + 1, (task.task, len(self._tasks))
        lines = [_json(entry) for entry in [*self._tasks, task]]
        write_text(self.directory / "tasks.jsonl", "\n".join(lines) + "\n")
        self._tasks.append(task)

    def keep_tasks(self, number: int) -> None:
        """Drop the lines after task ``number``: the next task writes them again."""
        self._tasks = self._tasks[:number]

    @property
    def record(self) -> RunRecord:
        """The record so far."""
        return RunRecord(self.directory, self._info, tuple(self._tasks))

    def finish(self) -> RunRecord:
        """Mark the run as finished and return its record."""
        return self._end("finished", None)

    def fail(self, error: BaseException | str) -> RunRecord:
        """Mark the run as failed, with the error in one line, and return its record."""
        return self._end("failed", in_one_line(error))

    def _end(self, status: Literal["finished", "failed"], error: str | None) -> RunRecord:
        ending = {"status": status, "error": error, "finished": _now()}
        self._info = self._info.model_copy(update=ending)
        self._write_info()
        return self.record

    def _write_info(self) -> None:
        text = json.dumps(
            self._info.model_dump(mode="json"), indent=1, ensure_ascii=False, allow_nan=False
        )
        write_text(self.directory / "run.json", text + "\n")


def _json(task: TaskRecord) -> str:
    return json.dumps(task.model_dump(mode="json"), ensure_ascii=False, allow_nan=False)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
