"""The table of tasks on the terminal: one line per finished task, 80 characters wide."""

from grace.base.words import in_bytes, in_count, in_percent
from grace.cli.clock import in_clock
from grace.runs import TaskRecord


def header() -> tuple[str, str]:
    """Return the two heading lines."""
    above = ("", "all", "old", "new", "saturation/", "", "back-", "para-", "", "exem-", "")
    below = (
        "task", "%", "%", "%", "threshold", "verdict", "bones", "meters", "weights", "plars", "time"
    )  # fmt: skip
    return _row(above), _row(below)


def row(task: TaskRecord) -> str:
    """Return the row of one task."""
    shown, seconds = task.accuracy, task.seconds.total
    assessed = f"{_fraction(task.saturation)}/{_fraction(task.threshold)}"
    return _row(
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


def _row(cells: tuple[str, ...]) -> str:
    widths = (4, 5, 5, 5, 11, 8, 5, 6, 7, 7, 7)
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
