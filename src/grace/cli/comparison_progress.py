"""Show the progress and the result of a comparison on the terminal."""

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self, final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from grace.base.words import counted
from grace.cli.clock import in_clock
from grace.cli.columns import aligned
from grace.cli.console import terminal, text_of
from grace.studies.cells import Cell
from grace.studies.comparison import Comparison
from grace.studies.summary import notes_of
from grace.studies.tables import comparison_table, format_cell


@final
class ComparisonProgress:
    """Prints a line for every finished run; on a terminal also the current runs and the time left.

    It implements :class:`grace.studies.pool.Watcher`.

    Args:
        names: names of all runs, those that are finished included; empty: they are not known yet.
        console: where to print; ``None``: standard error.
    """

    def __init__(self, names: Sequence[str], console: Console | None = None) -> None:
        self._console = console or terminal(err=True)
        self._total = len(names)
        self._width = max(map(len, names), default=20)
        self._left = 0
        self._running: dict[str, tuple[float, int]] = {}
        self._seconds: list[float] = []
        self._started = time.monotonic()
        self._live = Live(
            console=self._console, get_renderable=self._drawn, transient=True, refresh_per_second=2
        )

    def __enter__(self) -> Self:
        """Start drawing."""
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop drawing; after an interruption print how to continue."""
        self._live.stop()
        if isinstance(error, KeyboardInterrupt):
            self._say("the runs were stopped; the same command continues them")

    def planned(self, num_left: int, at_once: int) -> None:
        """Print the number of runs."""
        self._left = num_left
        self._total = max(self._total, num_left)
        done = self._total - num_left
        self._say(
            f"{self._total} runs, {done} finished before, {num_left} to do, {at_once} at a time"
            if done
            else f"{counted(self._total, 'run')}, {at_once} at a time"
        )

    def left(self, num_left: int) -> None:
        """Correct the number of runs that are left."""
        self._total += max(0, num_left - self._left)
        self._left = num_left

    def cell_started(self, cell: Cell) -> None:
        """Add the run to the list of current runs."""
        self._running[cell.name] = (time.monotonic(), 0)

    def cell_progressed(self, cell: Cell, num_tasks: int) -> None:
        """Update the number of finished tasks of a run."""
        self._running[cell.name] = (self._running[cell.name][0], num_tasks)

    def cell_ended(self, cell: Cell, failure: str | None) -> None:
        """Print the line of a finished run."""
        started, _ = self._running.pop(cell.name)
        seconds = time.monotonic() - started
        self._left -= 1
        self._seconds.append(seconds)
        what = f"failed: {failure}" if failure else f"done in {in_clock(seconds)}"
        place = f"{self._total - self._left}/{self._total}"
        self._say(f"{place:>7}  {cell.name:<{self._width}}  {what}{self._time_left()}")

    def _time_left(self) -> str:
        if not self._left:
            return ""
        spent = time.monotonic() - self._started
        return f", about {in_clock(spent / len(self._seconds) * self._left)} left"

    def _drawn(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
        for name, (started, done) in self._running.items():
            tasks = f"{done} task{'' if done == 1 else 's'} done"
            table.add_row(text_of(name), tasks, in_clock(time.monotonic() - started))
        return table

    def _say(self, text: str) -> None:
        self._console.print(text_of(text), soft_wrap=True)


def print_comparison(result: Comparison, console: Console | None = None) -> None:
    """Print the table, the failures and the paths of the files."""
    out = console or terminal()
    lines: list[str] = []
    if result.records:
        notes = notes_of(result.records)
        lines += [*_table(result), *notes, *([""] if notes else [])]
    for name, failure in result.failures.items():
        lines.append(f"{name} failed: {failure}")
    lines += [f"{path.stem:<8} {path}" for path in result.files if path.suffix in (".html", ".md")]
    for line in lines:
        out.print(text_of(line), soft_wrap=True)


def _table(result: Comparison) -> list[str]:
    """Return the lines of a table with the main columns; the files have all columns."""
    table = comparison_table(result.records)
    shown = ("last", "average", "forgetting", "backbones", "parameters_backbones", "seconds")
    places = [i for i, column in enumerate(table.columns) if column.key in shown]
    rows = [["method", "runs", *(table.columns[i].heading for i in places)]]
    for row in table.rows:
        cells = [format_cell(row.cells[i], table.columns[i]) for i in places]
        rows.append([row.group.label, str(len(row.group.complete)), *cells])
    return [*aligned(rows, "<" + ">" * (len(places) + 1)), ""]
