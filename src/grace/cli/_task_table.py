"""The table of tasks on the terminal: one line per task, as tasks end; 80 characters wide."""

from collections.abc import Mapping
from typing import Any

from grace.cli._clock import in_clock
from grace.text.units import in_bytes, in_count, in_percent


def header() -> str:
    """Return the two lines above the rows."""
    above = ("", "all", "old", "new", "saturation/", "", "back-", "para-", "", "exem-", "")
    below = (
        "task", "%", "%", "%", "threshold", "verdict", "bones", "meters", "weights", "plars", "time"
    )  # fmt: skip
    return f"{_row(above)}\n{_row(below)}"


def row(line: Mapping[str, Any]) -> str:
    """Return the row of one task from its line of the record."""
    primary = line.get("primary")
    shown = line["classifiers"].get(primary, {}) if primary else {}
    saturation, threshold = line.get("saturation"), line.get("threshold")
    seconds = line["seconds"]["total"]
    assessed = f"{_fraction(saturation)}/{_fraction(threshold)}"
    return _row(
        (
            str(line["task"]),
            in_percent(shown.get("all"), 1),
            in_percent(shown.get("old"), 1),
            in_percent(shown.get("new"), 1),
            "–" if saturation is None and threshold is None else assessed,
            _verdict(line.get("verdict")),
            str(line["backbones"]),
            in_count(line["parameters"]["total"]),
            in_bytes(line["bytes"]["weights"]),
            in_bytes(line["bytes"]["exemplars"]),
            f"{seconds:.1f} s" if seconds < 100 else in_clock(seconds),
        )
    )


def _verdict(verdict: str | None) -> str:
    """Shorten the verdict that would not fit its column, as ``grace history`` does."""
    return "budget" if verdict == "compress (budget)" else verdict or "–"


def _fraction(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _row(cells: tuple[str, ...]) -> str:
    widths = (4, 5, 5, 5, 11, 8, 5, 6, 7, 7, 7)
    return " ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
