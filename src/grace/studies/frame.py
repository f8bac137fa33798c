"""Runs as frames of pandas, and the numbers of a run that tables show."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from grace.runs.model import RunRecord
from grace.runs.record import read_records

# pandas is imported where a frame is made, so that plans and help are quick.
if TYPE_CHECKING:
    import pandas as pd


@final
@dataclass(frozen=True)
class Metric:
    """A number of a run, in the paper's units."""

    title: str
    value: Callable[[RunRecord], float | None]
    unit: str = ""
    digits: int = 2

    @property
    def heading(self) -> str:
        """Title with unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title

    def shown(self, mean: float, deviation: float = math.nan) -> str:
        """Return "57.39", or "57.39 ± 0.41" for several runs that differ; "–" if unknown."""
        if mean != mean:
            return "–"
        if not deviation > 0:
            return f"{mean:.{self.digits}f}"
        digits = max(self.digits, 1)
        return f"{mean:.{digits}f} ± {deviation:.{digits}f}"


def frame(*paths: str | Path) -> "pd.DataFrame":
    """Return the runs at or below some folders as a frame: a line per run and task.

    Accuracies are in percent, sizes in bytes, times in seconds.

    Raises:
        GraceError: if a path holds no run, or no run is readable.
    """
    return frame_of(read_records(paths, num_whole=0)[0])


def frame_of(records: Iterable[RunRecord]) -> "pd.DataFrame":
    """Return some runs as a frame: a line per run and task; see :func:`frame`."""
    import pandas as pd

    lines = [
        {
            "directory": str(record.directory),
            "experiment": record.info.experiment,
            "method": record.method,
            "seed": record.seed,
            "status": record.info.status,
            "task": task.task,
            "num_seen": task.num_seen,
            "accuracy": found.all if found else None,
            "old": found.old if found else None,
            "new": found.new if found else None,
            "task_aware": found.task_aware.all if found and found.task_aware else None,
            "saturation": task.saturation,
            "threshold": task.threshold,
            "verdict": task.verdict,
            "merge_weight": task.merge_weight,
            "backbones": task.backbones,
            "parameters": task.parameters.total,
            "weight_bytes": task.bytes.weights,
            "exemplars": task.num_exemplars,
            "exemplar_bytes": task.bytes.exemplars,
            "seconds": task.seconds.total,
        }
        for record in records
        for task, found in ((task, task.accuracy) for task in record.tasks)
    ]
    return pd.DataFrame(lines)


def numbers_of(records: Iterable[RunRecord | None]) -> "pd.DataFrame":
    """Return a line for each run with a column for each metric; NaN: unknown, or not finished."""
    import pandas as pd

    lines = [
        [
            metric.value(record) if record and record.complete and record.tasks else None
            for metric in METRICS.values()
        ]
        for record in records
    ]
    return pd.DataFrame(lines, columns=list(METRICS), dtype=float)


def memory_size(record: RunRecord) -> float | None:
    """Return the exemplars that a run may keep; ``None``: their number is not fixed."""
    size = record.info.section("memory").get("size")
    return float(size) if isinstance(size, int) else None


def _megabytes(record: RunRecord) -> float | None:
    """Return the bytes that memory-aligned runs share: backbones, and a full memory of images."""
    size, dataset = memory_size(record), record.info.dataset
    if size is None or dataset is None:
        return None
    return (4 * record.tasks[-1].parameters.backbones + size * math.prod(dataset.shape)) / 1e6


METRICS: Mapping[str, Metric] = {
    "last": Metric("Last", lambda r: r.last, "%"),
    "average": Metric("Avg", lambda r: r.average, "%"),
    "forgetting": Metric("Forgetting", lambda r: r.forgetting, "points"),
    "old": Metric("Old", lambda r: getattr(r.tasks[-1].accuracy, "old", None), "%"),
    "new": Metric("New", lambda r: getattr(r.tasks[-1].accuracy, "new", None), "%"),
    "backward_transfer": Metric("BWT", lambda r: r.backward_transfer, "points"),
    "task_aware_last": Metric("TA Last", lambda r: r.task_aware_last, "%"),
    "backbones": Metric("Backbones", lambda r: r.tasks[-1].backbones, digits=0),
    "parameters": Metric("#P", lambda r: r.tasks[-1].parameters.backbones / 1e6, "M"),
    "exemplars": Metric("M", memory_size, digits=0),
    "megabytes": Metric("Backbones and memory", _megabytes, "MB", digits=3),
    "seconds": Metric("Time", lambda r: r.seconds, "s", digits=0),
}
"""The numbers that a study can show and compare."""
