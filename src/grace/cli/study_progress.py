"""What ``grace study`` and ``grace compare`` print: progress, tables, and the same as JSON."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, final

from rich.live import Live
from rich.table import Table as LiveTable

from grace.base.words import counted, in_seconds
from grace.cli.console import emit_json, say, terminal, text_of
from grace.cli.show import aligned
from grace.runs.reading import num_tasks
from grace.studies.claims import judge_claims
from grace.studies.results import Results, StudyResult
from grace.studies.study import notes_of
from grace.studies.table import Table, claims_table, study_tables


@final
class StudyProgress:
    """Prints a line for every finished run; on a terminal also the current runs.

    It implements :class:`grace.studies.workers.Watcher`.
    """

    def __init__(self) -> None:
        self._console = terminal(err=True)
        self._total = self._done = 0
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
        self._total = num_left
        self._say(f"{counted(num_left, 'run')} to make, {at_once} at a time")

    def started(self, name: str, place: Path) -> None:
        """Add the run to the current runs."""
        self._running[name] = (place, time.monotonic())

    def ended(self, name: str, failure: str | None, num_left: int) -> None:
        """Print the line of a finished run."""
        _, started = self._running.pop(name)
        now = time.monotonic()
        what = f"failed: {failure}" if failure else f"done in {in_seconds(now - started)}"
        self._done += 1
        self._total = self._done + num_left  # A finished run may stand for others.
        spent = (now - self._started) / self._done * num_left
        left = f", about {in_seconds(spent)} left" if num_left else ""
        self._say(f"{self._done}/{self._total}  {name}  {what}{left}")

    def _drawn(self) -> LiveTable:
        table = LiveTable(box=None, padding=(0, 2, 0, 0), show_header=False)
        for name, (place, started) in list(self._running.items()):
            done = f"{counted(num_tasks(place), 'task')} done"
            table.add_row(text_of(name), done, in_seconds(time.monotonic() - started))
        return table

    def _say(self, text: str) -> None:
        self._console.print(text_of(text), soft_wrap=True)


def show_result(made: StudyResult, *, as_json: bool) -> None:
    """Print the tables, claims, notes, failures and paths of a study."""
    results = Results(made)
    claims = judge_claims(results)
    tables = study_tables(results) if made.found else []
    if as_json:
        emit_json(
            {
                "study": made.study.name,
                "scale": results.at,
                "tables": [table_json(table) for table in tables],
                "claims": {judged.claim.id: judged.verdict for judged in claims},
                "failures": dict(made.failures),
                "notes": list(made.notes),
                "files": [str(path) for path in made.files],
            }
        )
        return
    for table in [*tables, *([claims_table(claims)] if claims else [])]:
        say(*table_lines(table), "")
    say(*notes_of(made))
    say(*(str(path) for path in made.files if path.suffix in (".html", ".csv")))


def table_lines(table: Table) -> Iterator[str]:
    """Yield a table as aligned lines, then its notes."""
    numbers = len(table.headings) - table.num_names
    yield table.name
    yield from aligned([table.headings, *table.rows], "<" * table.num_names + ">" * numbers)
    yield from table.notes


def table_json(table: Table) -> dict[str, Any]:
    """Return a table as JSON: a mapping of headings to texts for each row."""
    names = _unique(table.headings)
    rows = [dict(zip(names, row, strict=True)) for row in table.rows]
    return {"name": table.name, "rows": rows, "notes": list(table.notes)}


def _unique(headings: Sequence[str]) -> list[str]:
    """Return headings of which no two are equal: "paper" becomes "Last (%) paper"."""
    names: list[str] = []
    for place, name in enumerate(headings):
        names.append(f"{headings[place - 1]} {name}" if headings.count(name) > 1 else name)
    return names
