"""Progress of runs, updates and studies: a bar on a terminal, elsewhere a line at times."""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Self, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from grace.base.words import counted, in_bytes, in_count, in_seconds, printable
from grace.cli.console import terminal, text_of
from grace.runs.model import TaskRecord


@final
class Clock:
    """Estimates the time left of some work from the share that this process has done of it.

    Args:
        share: what was done before.
        now: the time in seconds.
    """

    def __init__(self, share: float = 0.0, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._started = now, now()
        self.share, self._done = share, 0.0

    def reach(self, share: float, *, worked: bool) -> None:
        """Note how much is done; ``worked``: it took time, it was not left out or read from disk.

        A share that is smaller than before changes nothing: several phases may take turns.
        """
        self._done += max(0.0, share - self.share) * worked
        self.share = max(share, self.share)

    def seconds_left(self) -> float | None:
        """Estimate the seconds until the end; ``None``: nothing tells how long, or all is done."""
        if not self._done or self.share > 1 - 1e-9:
            return None
        return (1 - self.share) * (self._now() - self._started) / self._done


@final
class Bar:
    """One bar with a text on a terminal; elsewhere the text as a line, at times.

    Args:
        console: shows the bar.
        notes: gets the lines if ``console`` is no terminal.
        seconds_between_notes: how often a line is printed that is not important.
        now: the time in seconds.
    """

    def __init__(
        self,
        console: Console,
        notes: Console,
        seconds_between_notes: float,
        now: Callable[[], float],
    ) -> None:
        self._console, self._notes, self._now = console, notes, now
        self._between, self._noted = seconds_between_notes, 0.0
        self.clock = Clock(now=now)
        # The names of phases and losses are a method's, not markup. What may not fit stands last.
        cut = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._progress = Progress(
            BarColumn(bar_width=20),
            TextColumn("{task.description}", markup=False, table_column=cut),
            console=console,
            expand=True,
            transient=True,
        )
        self._task = self._progress.add_task("", total=None, visible=False)

    def __enter__(self) -> Self:
        """Start drawing."""
        if self._console.is_terminal:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the bar, also after an error."""
        self._progress.live.stop()

    def show(self, *parts: str, important: bool = True) -> None:
        """Show what is done now, and the time left."""
        left = self.clock.seconds_left()
        more = [] if left is None else [f"about {in_seconds(left)} left"]
        text = "  ".join([*filter(None, parts), *more])
        self._progress.update(
            self._task,
            description=printable(text),
            total=1 if self.clock.share else None,
            completed=self.clock.share,
            visible=True,
        )
        if important or self._now() - self._noted >= self._between:
            self._noted = self._now()
            if not self._console.is_terminal:
                self._notes.print(text_of(text), soft_wrap=True)


@final
class RichProgress:
    """Shows task, phase, epoch, loss and time left of a run, and a table row per finished task.

    Without a terminal the table goes to ``console`` and the bar's lines to ``notes``, so that a
    file of the one stays a table. It implements :class:`grace.runs.run.RunProgress`.
    """

    def __init__(
        self,
        console: Console | None = None,
        notes: Console | None = None,
        *,
        seconds_between_notes: float = 10.0,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console, self._now = console or terminal(), now
        self._bar = Bar(self._console, notes or terminal(err=True), seconds_between_notes, now)
        self._passes: Mapping[str, float] = {}
        self._total, self._task, self._has_header = 0, "", False

    def __enter__(self) -> Self:
        """Start drawing."""
        self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        """Remove the bar, also after an error."""
        self._bar.__exit__(*error)

    def task_started(self, number: int, total: int, class_names: Sequence[str]) -> None:
        """Show the task and its new classes."""
        if number <= 2 or not self._total:
            # The first task has more classes than the others, and tells little of them.
            self._bar.clock = Clock((number - 1) / total, self._now)
        self._task, self._total = f"task {number}/{total}", total
        self._bar.show(f"{self._task}: {_new_classes(class_names)}")

    def waiting(self, what: str) -> None:
        """Show work of unknown length."""
        self._bar.show(what, important=False)

    def update_started(self, class_names: Sequence[str]) -> None:
        """Show a learner's update and its new classes."""
        self._task, self._passes = "update", {}
        self._bar.show(f"{self._task}: {_new_classes(class_names)}")

    def update_planned(self, passes: Mapping[str, float]) -> None:
        """Start the bar of a learner's update; a run shows its tasks."""
        if not self._total:
            self._passes = passes
            self._bar.clock = Clock(now=self._now)

    def phase_started(self, name: str, epochs: int, images: int) -> None:
        """Show the work of a phase."""
        self._reach(name, 0, worked=False)
        work = f"{counted(epochs, 'epoch')} over {counted(images, 'image')}"
        self._bar.show(f"{self._task}: {name}, {work}")

    def epoch_finished(
        self, name: str, epoch: int, epochs: int, losses: Mapping[str, float], lr: float
    ) -> None:
        """Show the losses."""
        # The first epoch may be any: a phase goes on from a snapshot.
        self._reach(name, (epoch - 1) / epochs, worked=False)
        self._reach(name, epoch / epochs, worked=True)
        shown = "  ".join(f"{key} {value:.3f}" for key, value in losses.items())
        place = f"{self._task}: {name} epoch {epoch}/{epochs}"
        self._bar.show(place, shown, f"lr {lr:.2g}", important=False)

    def phase_finished(self, name: str, seconds: float) -> None:
        """Go on behind the phase, also behind one that was read from disk."""
        self._reach(name, 1, worked=False)

    def sweep_started(self, name: str, images: int) -> None:
        """Show a pass over data without training."""
        # Over a frozen backbone a planned one is most of the work.
        self._reach(name, 0, worked=False)
        text = f"{self._task}: {name} of {counted(images, 'image')}"
        self._bar.show(text, important=name in self._passes)

    def task_finished(self, task: TaskRecord) -> None:
        """Print the table row of the task."""
        self._bar.clock.reach(task.task / self._total, worked=True)
        lines = [] if self._has_header else [(_cells(line), "bold") for line in _HEADER]
        for line, style in [*lines, (_task_row(task), "")]:
            self._console.print(text_of(line, style), soft_wrap=True)
        self._has_header = True

    def _reach(self, phase: str, share: float, *, worked: bool) -> None:
        """Note how far a planned phase or sweep of an update is; those before it are over."""
        if phase in self._passes:
            before = sum(self._passes[name] for name in takewhile(phase.__ne__, self._passes))
            done = before + share * self._passes[phase]
            self._bar.clock.reach(done / (sum(self._passes.values()) or 1), worked=worked)


@final
class StudyProgress:
    """Shows the runs that go on, and prints a line for every finished run.

    It implements :class:`grace.studies.workers.Watcher`.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._console, self._now = terminal(err=True), now
        self._bar = Bar(self._console, self._console, float("inf"), now)
        self._num_done = 0
        self._started: dict[str, float] = {}

    def __enter__(self) -> Self:
        """Start drawing."""
        self._bar.__enter__()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Stop drawing; after an interruption print how to continue."""
        self._bar.__exit__()
        if isinstance(error, KeyboardInterrupt):
            self._say("the runs were stopped; the same command continues them")

    def planned(self, num_left: int, at_once: int) -> None:
        """Print the number of runs."""
        self._say(f"{counted(num_left, 'run')} to make, {at_once} at a time")

    def started(self, name: str, place: Path) -> None:
        """Add the run to the current runs."""
        self._started[name] = self._now()
        self._bar.show(", ".join(self._started), important=False)

    def ended(self, name: str, failure: str | None, num_left: int) -> None:
        """Print the line of a finished run."""
        seconds = self._now() - self._started.pop(name)
        what = f"failed: {failure}" if failure else f"done in {in_seconds(seconds)}"
        self._num_done += 1
        total = self._num_done + num_left  # It may fall: a finished run may stand for others.
        self._bar.clock.reach(self._num_done / total, worked=True)
        left = self._bar.clock.seconds_left()
        more = "" if left is None else f", about {in_seconds(left)} left"
        self._say(f"{self._num_done}/{total}  {name}  {what}{more}")
        self._bar.show(", ".join(self._started), important=False)

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
    shown = task.accuracy
    shares = (shown.all, shown.old, shown.new) if shown else (None, None, None)
    assessed = [
        "–" if value is None else f"{value:.3f}" for value in (task.saturation, task.threshold)
    ]
    verdict = "budget" if task.verdict == "compress (budget)" else task.verdict
    return _cells(
        (
            str(task.task),
            *("–" if share is None else f"{share:.1f}" for share in shares),
            "–" if assessed == ["–", "–"] else "/".join(assessed),
            verdict or "–",
            str(task.backbones),
            in_count(task.parameters.total),
            in_bytes(task.bytes.weights),
            in_bytes(task.bytes.exemplars),
            in_seconds(task.seconds.total).removesuffix(" min"),
        )
    )


def _cells(cells: Sequence[str]) -> str:
    widths = (4, 5, 5, 5, 11, 8, 5, 6, 7, 7, 7)
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
