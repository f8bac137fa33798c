"""Show the progress of a run: bars on a terminal, an occasional line elsewhere."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, final

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from grace.base.words import counted, in_bytes, in_count, in_percent, printable
from grace.cli.clock import RunClock, UpdateClock, in_clock
from grace.cli.console import terminal, text_of
from grace.runs import RunRecord, TaskRecord


@final
class RichProgress:
    """Shows task, phase, epoch, loss and time left of a run, and a table row per finished task.

    On a terminal two bars (run or update, and phase) stay below the growing table. Elsewhere the
    table goes to ``console`` and an occasional plain line to ``notes``, so that a file of the one
    stays a table. It implements :class:`grace.runs.progress.RunProgress`.
    """

    def __init__(
        self,
        console: Console | None = None,
        notes: Console | None = None,
        *,
        seconds_between_notes: float = 10.0,
    ) -> None:
        self._console = console or terminal()
        self._notes = notes or terminal(err=True)
        self._live = self._console.is_terminal
        self._between = seconds_between_notes
        self._noted = 0.0
        self._clock = RunClock()
        self._update: UpdateClock | None = None
        self._header_shown = False
        self._total = 0
        self._task = ""
        self._before_phase = ""
        # What may not fit stands last, where a narrow terminal cuts it off.
        self._run_bar = Progress(
            _shown("{task.description:<12}"),
            BarColumn(bar_width=20),
            _shown("{task.fields[count]}"),
            _one_line("{task.fields[left]}"),
            console=self._console,
            expand=True,
        )
        self._phase_bar = Progress(
            _shown("{task.description:<12}"),
            BarColumn(bar_width=20),
            _shown("{task.fields[epoch]}"),
            TimeRemainingColumn(compact=True),
            _one_line("{task.fields[state]}"),
            console=self._console,
            expand=True,
        )
        self._run = self._run_bar.add_task("run", total=None, visible=False, count="", left="")
        self._phase = self._phase_bar.add_task("", total=1, visible=False, epoch="", state="")
        self._display = Live(
            Group(self._run_bar, self._phase_bar), console=self._console, transient=True
        )

    def __enter__(self) -> Self:
        """Start drawing."""
        if self._live:
            self._display.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Remove the bars, also after an error."""
        if self._live:
            self._display.stop()

    def task_started(self, number: int, total: int, class_names: Sequence[str]) -> None:
        """Show the task and its new classes.

        Args:
            number: number of the task, from 1.
            total: number of tasks.
            class_names: names of the new classes.
        """
        self._clock.task_started(total)
        self._task = f"task {number}/{total}"
        self._total = total
        self._run_bar.update(self._run, total=total, visible=True)
        self._count(number - 1)
        self._note(f"{self._task}: {_new_classes(class_names)}")

    def waiting(self, what: str) -> None:
        """Show work of unknown length."""
        self._phase_bar.reset(
            self._phase, total=None, visible=True, description=printable(what), epoch="", state=""
        )

    def update_started(self, class_names: Sequence[str]) -> None:
        """Show a learner's update and its new classes."""
        self._task = "update"
        self._before_phase = f"{self._task}  "
        self._update = None
        self._note(f"{self._task}: {_new_classes(class_names)}")

    def update_planned(self, passes: Mapping[str, float]) -> None:
        """Start the bar of a learner's update; a run shows its tasks.

        Args:
            passes: the planned cost of each phase by its name.
        """
        if self._total:
            return
        self._update = UpdateClock(passes)
        self._run_bar.reset(
            self._run, total=1, visible=True, description="update", count="", left=""
        )

    def phase_started(self, name: str, epochs: int, images: int) -> None:
        """Start the bar of a phase.

        Args:
            name: name of the phase.
            epochs: number of its epochs.
            images: number of its training images.
        """
        if self._update is not None:
            self._update.phase_started(name)
            self._advance()
        self._phase_bar.reset(
            self._phase,
            total=epochs,
            visible=True,
            description=printable(self._before_phase + name),
            epoch=f"epoch 0/{epochs}",
            state=counted(images, "image"),
        )
        work = f"{counted(epochs, 'epoch')} over {counted(images, 'image')}"
        self._note(f"{self._task}: {name}, {work}")

    def epoch_finished(
        self, name: str, epoch: int, epochs: int, losses: Mapping[str, float], lr: float
    ) -> None:
        """Advance the bar and show the losses.

        Args:
            name: name of the phase.
            epoch: number of the finished epoch, from 1.
            epochs: number of all epochs.
            losses: mean losses of the epoch by name.
            lr: learning rate of the epoch.
        """
        shown = "  ".join(f"{key} {value:.3f}" for key, value in losses.items())
        place, state = f"epoch {epoch}/{epochs}", f"{printable(shown)}  lr {lr:.2g}"
        self._phase_bar.update(self._phase, completed=epoch, epoch=place, state=state)
        if self._update is not None:
            self._update.epoch_finished(epoch, epochs)
        self._advance()
        if time.monotonic() - self._noted >= self._between:
            parts = (f"{self._task}: {name} {place}", state, self._left())
            self._note("  ".join(part for part in parts if part))

    def phase_finished(self, name: str, seconds: float) -> None:
        """Show the seconds that the phase took."""
        if self._update is not None:
            self._update.phase_finished()
            self._advance()
        self._phase_bar.update(self._phase, state=f"done in {seconds:.1f} s")

    def sweep_started(self, name: str, images: int) -> None:
        """Show a pass over data without training."""
        if self._update is not None and self._update.plans(name):
            self._update.phase_started(name)
            self._advance()
            # Over a frozen backbone this is most of the work, and there is no epoch to tell of.
            self._note(f"{self._task}: {name} of {counted(images, 'image')}")
        self._phase_bar.reset(
            self._phase,
            total=None,
            visible=True,
            description=printable(self._before_phase + name),
            epoch="looking",
            state=counted(images, "image"),
        )

    def task_finished(self, task: TaskRecord) -> None:
        """Print the table row of the task."""
        self._clock.task_finished()
        self._phase_bar.update(self._phase, visible=False)
        self._count(task.task)
        if not self._header_shown:
            for line in _header():
                self._print(line, style="bold")
        self._header_shown = True
        self._print(_task_row(task))

    def _count(self, num_done: int) -> None:
        """Show the number of finished tasks of a run."""
        self._run_bar.update(
            self._run,
            completed=num_done,
            count=f"{num_done}/{self._total} tasks",
            left=self._left(),
        )

    def _advance(self) -> None:
        """Show how far the update is, and the time left of the run or update."""
        if self._update is not None:
            self._run_bar.update(self._run, completed=self._update.share_done)
        self._run_bar.update(self._run, left=self._left())

    def _left(self) -> str:
        left = (self._update or self._clock).seconds_left()
        return f"about {in_clock(left)} left" if left is not None else ""

    def _note(self, text: str) -> None:
        self._noted = time.monotonic()
        if not self._live:
            self._notes.print(text_of(text), soft_wrap=True)

    def _print(self, text: str, style: str = "") -> None:
        self._console.print(text_of(text, style), soft_wrap=True)


def _new_classes(names: Sequence[str]) -> str:
    if not names:
        return "no new class"
    shown = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
    return f"{len(names)} new class{'es' if len(names) != 1 else ''} ({shown})"


def _shown(text: str, column: Column | None = None) -> TextColumn:
    """Make a column of a bar; the names of phases and losses are a method's, not markup."""
    return TextColumn(text, markup=False, table_column=column)


def _one_line(text: str) -> TextColumn:
    return _shown(text, Column(ratio=1, no_wrap=True, overflow="ellipsis"))


def print_summary(record: RunRecord, report: Path | None, console: Console | None = None) -> None:
    """Print Last, Avg, forgetting, and the paths of the record and the report.

    Args:
        record: record of the run.
        report: path of the report; ``None``: no report was written.
        console: where to print; ``None``: standard output.
    """
    out = console or terminal()
    numbers = (
        f"Last {_with_unit(record.last, ' %')}   Avg {_with_unit(record.average, ' %')}   "
        f"forgetting {_with_unit(record.forgetting, ' points')}"
    )
    lines = ["", numbers, *record.info.notes, f"record  {record.directory}"]
    lines += [f"report  {report}"] if report else []
    for line in lines:
        out.print(text_of(line), soft_wrap=True)


def _with_unit(value: float | None, unit: str) -> str:
    return f"{in_percent(value)}{unit}" if value is not None else "–"


def _header() -> tuple[str, str]:
    """Return the two heading lines."""
    above = ("", "all", "old", "new", "saturation/", "", "back-", "para-", "", "exem-", "")
    below = (
        "task", "%", "%", "%", "threshold", "verdict", "bones", "meters", "weights", "plars", "time"
    )  # fmt: skip
    return _cells(above), _cells(below)


def _task_row(task: TaskRecord) -> str:
    """Return the row of one task, 80 characters wide."""
    shown, seconds = task.accuracy, task.seconds.total
    assessed = f"{_fraction(task.saturation)}/{_fraction(task.threshold)}"
    return _cells(
        (
            str(task.task),
            in_percent(shown.all if shown else None, 1),
            in_percent(shown.old if shown else None, 1),
            in_percent(shown.new if shown else None, 1),
            "–" if task.saturation is None and task.threshold is None else assessed,
            _verdict(task.verdict),
            str(task.backbones),
            in_count(task.parameters.total),
            in_bytes(task.bytes.weights),
            in_bytes(task.bytes.exemplars),
            f"{seconds:.1f} s" if seconds < 100 else in_clock(seconds),
        )
    )


def _verdict(verdict: str | None) -> str:
    """Shorten the one verdict that is too long for its column, as ``grace history`` does."""
    return "budget" if verdict == "compress (budget)" else verdict or "–"


def _fraction(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _cells(cells: tuple[str, ...]) -> str:
    widths = (4, 5, 5, 5, 11, 8, 5, 6, 7, 7, 7)
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
