"""Show the progress of runs, updates and studies: bars on a terminal, elsewhere a line at times."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import dropwhile
from pathlib import Path
from typing import Self, final

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column, Table

from grace.base.words import counted, in_bytes, in_count, in_percent, in_seconds, printable
from grace.cli.console import terminal, text_of
from grace.runs import TaskRecord
from grace.runs.reading import num_tasks


@final
class RunClock:
    """Estimates the time left of a run from its finished tasks; the first counts only at first."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._started: float | None = None
        self._finished: list[float] = []
        self._total = 0

    def task_started(self, total: int) -> None:
        """Start timing one of ``total`` tasks."""
        self._started, self._total = self._now(), total

    def task_finished(self) -> None:
        """Stop timing the task."""
        assert self._started is not None
        self._finished.append(self._now() - self._started)
        self._started = None

    def seconds_left(self) -> float | None:
        """Estimate the seconds until the last task ends; ``None``: nothing tells how long."""
        if not self._finished:
            return None
        later = self._finished[1:] or self._finished
        mean = sum(later) / len(later)
        spent = min(mean, self._now() - self._started) if self._started is not None else 0.0
        left = (self._total - len(self._finished)) * mean - spent
        return left if left > 0 else None


@final
class UpdateClock:
    """Estimates the time left of an update from the planned cost of its phases, in their order.

    Only epochs that this process trained count for its speed: after an interruption, the others are
    read from disk. A planned phase that is left out takes no time once a later one starts.
    """

    def __init__(
        self, passes: Mapping[str, float], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._passes = dict(passes)
        self._now, self._started = now, now()
        self._phase: str | None = None
        self._epoch, self._done = 0, 0.0
        self._left = sum(self._passes.values())

    @property
    def share_done(self) -> float:
        """The share of the planned passes that is over, from 0 to 1."""
        total = sum(self._passes.values())
        return 1 - self._left / total if total else 1.0

    def plans(self, name: str) -> bool:
        """Return ``True`` if a phase or sweep of this name is in the plan."""
        return name in self._passes

    def phase_started(self, name: str) -> None:
        """Go on to a phase; one that was not planned stands after all planned ones."""
        self._phase, self._epoch = name if self.plans(name) else None, 0
        self._left = sum(self._passes[later] for later in dropwhile(name.__ne__, self._passes))

    def epoch_finished(self, epoch: int, epochs: int) -> None:
        """Count an epoch of the phase, once if several phases take turns."""
        if self._phase is None or epoch <= self._epoch:
            return
        each = self._passes[self._phase] / epochs
        before = self._epoch or epoch - 1  # The first may be any: a phase goes on from a snapshot.
        self._done += each * (epoch - before)
        self._left -= each * (epoch - self._epoch)
        self._epoch = epoch

    def phase_finished(self) -> None:
        """End the phase, also one that was read from disk."""
        if self._phase is not None:
            whole = self._passes[self._phase]
            self.phase_started(self._phase)
            self._left -= whole
        self._phase = None

    def seconds_left(self) -> float | None:
        """Estimate the seconds of training left; ``None`` before an epoch and after the last."""
        if not self._done or self._left <= 1e-9 * sum(self._passes.values()):
            return None
        return self._left * (self._now() - self._started) / self._done


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
        self._between, self._noted = seconds_between_notes, 0.0
        self._clock = RunClock()
        self._update: UpdateClock | None = None
        self._total, self._task, self._has_header = 0, "", False
        # The names of phases and losses are a method's, not markup. What may not fit stands last.
        cut = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._bars = Progress(
            TextColumn("{task.description:<12}", markup=False),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[count]}", markup=False),
            TextColumn("{task.fields[state]}", markup=False, table_column=cut),
            console=self._console,
            expand=True,
            transient=True,
        )
        self._run, self._phase = (
            self._bars.add_task("run", total=None, visible=False, count="", state="")
            for _ in range(2)
        )

    def __enter__(self) -> Self:
        """Start drawing."""
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the bars, also after an error."""
        self._bars.live.stop()

    def task_started(self, number: int, total: int, class_names: Sequence[str]) -> None:
        """Show the task and its new classes."""
        self._clock.task_started(total)
        self._task, self._total = f"task {number}/{total}", total
        self._bars.update(self._run, total=total, visible=True)
        self._count(number - 1)
        self._note(f"{self._task}: {_new_classes(class_names)}")

    def waiting(self, what: str) -> None:
        """Show work of unknown length."""
        self._show_phase(what, None, "", "")

    def update_started(self, class_names: Sequence[str]) -> None:
        """Show a learner's update and its new classes."""
        self._task, self._update = "update", None
        self._note(f"{self._task}: {_new_classes(class_names)}")

    def update_planned(self, passes: Mapping[str, float]) -> None:
        """Start the bar of a learner's update; a run shows its tasks."""
        if not self._total:
            self._update = UpdateClock(passes)
            self._bars.reset(self._run, total=1, visible=True, description="update")

    def phase_started(self, name: str, epochs: int, images: int) -> None:
        """Start the bar of a phase."""
        if self._update is not None:
            self._update.phase_started(name)
        self._advance()
        self._show_phase(self._named(name), epochs, f"epoch 0/{epochs}", counted(images, "image"))
        work = f"{counted(epochs, 'epoch')} over {counted(images, 'image')}"
        self._note(f"{self._task}: {name}, {work}")

    def epoch_finished(
        self, name: str, epoch: int, epochs: int, losses: Mapping[str, float], lr: float
    ) -> None:
        """Advance the bar and show the losses."""
        shown = "  ".join(f"{key} {value:.3f}" for key, value in losses.items())
        place, state = f"epoch {epoch}/{epochs}", f"{printable(shown)}  lr {lr:.2g}"
        self._bars.update(self._phase, completed=epoch, count=place, state=state)
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
        self._bars.update(self._phase, state=f"done in {seconds:.1f} s")

    def sweep_started(self, name: str, images: int) -> None:
        """Show a pass over data without training."""
        if self._update is not None and self._update.plans(name):
            self._update.phase_started(name)
            self._advance()
            # Over a frozen backbone this is most of the work, and there is no epoch to tell of.
            self._note(f"{self._task}: {name} of {counted(images, 'image')}")
        self._show_phase(self._named(name), None, "looking", counted(images, "image"))

    def task_finished(self, task: TaskRecord) -> None:
        """Print the table row of the task."""
        self._clock.task_finished()
        self._bars.update(self._phase, visible=False)
        self._count(task.task)
        lines = [] if self._has_header else [(_cells(line), "bold") for line in _HEADER]
        for line, style in [*lines, (_task_row(task), "")]:
            self._console.print(text_of(line, style), soft_wrap=True)
        self._has_header = True

    def _named(self, phase: str) -> str:
        return f"update  {phase}" if self._task == "update" else phase

    def _show_phase(self, name: str, epochs: int | None, count: str, state: str) -> None:
        self._bars.reset(
            self._phase,
            total=epochs,
            visible=True,
            description=printable(name),
            count=count,
            state=state,
        )

    def _count(self, num_done: int) -> None:
        """Show the number of finished tasks of a run."""
        self._bars.update(self._run, completed=num_done, count=f"{num_done}/{self._total} tasks")
        self._advance()

    def _advance(self) -> None:
        """Show how far the update is, and the time left of the run or update."""
        if self._update is not None:
            self._bars.update(self._run, completed=self._update.share_done)
        self._bars.update(self._run, state=self._left())

    def _left(self) -> str:
        left = (self._update or self._clock).seconds_left()
        return f"about {in_clock(left)} left" if left is not None else ""

    def _note(self, text: str) -> None:
        self._noted = time.monotonic()
        if not self._console.is_terminal:
            self._notes.print(text_of(text), soft_wrap=True)


@final
class StudyProgress:
    """Prints a line for every finished run; on a terminal also the current runs.

    It implements :class:`grace.studies.workers.Watcher`.
    """

    def __init__(self) -> None:
        self._console = terminal(err=True)
        self._done = 0
        self._running: dict[str, tuple[Path, float]] = {}
        self._started = time.monotonic()
        self._live = Live(
            console=self._console, get_renderable=self._drawn, transient=True, refresh_per_second=1
        )

    def __enter__(self) -> Self:
        """Start drawing."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Stop drawing; after an interruption print how to continue."""
        self._live.stop()
        if isinstance(error, KeyboardInterrupt):
            self._say("the runs were stopped; the same command continues them")

    def planned(self, num_left: int, at_once: int) -> None:
        """Print the number of runs."""
        self._say(f"{counted(num_left, 'run')} to make, {at_once} at a time")

    def started(self, name: str, place: Path) -> None:
        """Add the run to the current runs."""
        self._running[name] = (place, time.monotonic())

    def ended(self, name: str, failure: str | None, num_left: int) -> None:
        """Print the line of a finished run."""
        now, (_, started) = time.monotonic(), self._running.pop(name)
        what = f"failed: {failure}" if failure else f"done in {in_seconds(now - started)}"
        self._done += 1
        left = (now - self._started) / self._done * num_left
        more = f", about {in_seconds(left)} left" if num_left else ""
        # The total may fall: a finished run may stand for others.
        self._say(f"{self._done}/{self._done + num_left}  {name}  {what}{more}")

    def _drawn(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for name, (place, started) in list(self._running.items()):
            done = f"{counted(num_tasks(place), 'task')} done"
            table.add_row(text_of(name), done, in_seconds(time.monotonic() - started))
        return table

    def _say(self, text: str) -> None:
        self._console.print(text_of(text), soft_wrap=True)


def _new_classes(names: Sequence[str]) -> str:
    if not names:
        return "no new class"
    shown = ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
    return f"{counted(len(names), 'new class', 'new classes')} ({shown})"


_HEADER = (
    ("", "all", "old", "new", "saturation/", "", "back-", "para-", "", "exem-", ""),
    ("task", "%", "%", "%", "threshold", "verdict", "bones", "meters", "weights", "plars", "time"),
)


def _task_row(task: TaskRecord) -> str:
    """Return the row of one task, 80 characters wide."""
    shown, seconds = task.accuracy, task.seconds.total
    shares = (shown.all, shown.old, shown.new) if shown else (None, None, None)
    assessed = [
        "–" if value is None else f"{value:.3f}" for value in (task.saturation, task.threshold)
    ]
    verdict = "budget" if task.verdict == "compress (budget)" else task.verdict
    return _cells(
        (
            str(task.task),
            *(in_percent(share, 1) for share in shares),
            "–" if assessed == ["–", "–"] else "/".join(assessed),
            verdict or "–",
            str(task.backbones),
            in_count(task.parameters.total),
            in_bytes(task.bytes.weights),
            in_bytes(task.bytes.exemplars),
            f"{seconds:.1f} s" if seconds < 100 else in_clock(seconds),
        )
    )


def _cells(cells: Sequence[str]) -> str:
    widths = (4, 5, 5, 5, 11, 8, 5, 6, 7, 7, 7)
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))


def in_clock(seconds: float) -> str:
    """Return "0:04:05"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
