"""The events of a run, for programs that show its progress."""

from collections.abc import Sequence
from typing import Protocol, final

from grace.engine.progress import Progress
from grace.runs.model import TaskRecord


class RunProgress(Progress, Protocol):
    """Receives the events of a run, those of its phases and sweeps included."""

    def task_started(self, number: int, total: int, class_names: Sequence[str]) -> None:
        """Called when a task begins.

        Args:
            number: number of the task, from 1.
            total: number of tasks of the run.
            class_names: names of the task's new classes.
        """
        return

    def task_finished(self, task: TaskRecord) -> None:
        """Called when a task is finished, with its line of the record."""
        return


@final
class SilentRun(RunProgress):
    """Ignores every event of a run."""
