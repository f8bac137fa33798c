"""Runs as frames of pandas, and groups of runs that differ only in their seeds."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from grace.base.errors import GraceError
from grace.base.words import counted
from grace.runs.model import RunRecord, as_time
from grace.runs.record import find_runs, read_record
from grace.settings.load import flatten
from grace.settings.registry import METHODS
from grace.studies.plan import MAX_RECORDS, without_confusion

# pandas is imported where a frame is made, so that plans and help are quick.
if TYPE_CHECKING:
    import pandas as pd

_WHOLE = 4
"""How many records keep their confusion matrix; it takes most of a record's memory."""


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
    return frame_of(read_runs(paths)[0])


def frame_of(records: Iterable[RunRecord]) -> "pd.DataFrame":
    """Return some runs as a frame: a line per run and task; see :func:`frame`."""
    import pandas as pd

    lines = []
    for record in records:
        own = {
            "directory": str(record.directory),
            "experiment": record.info.experiment,
            "method": record.method,
            "seed": record.seed,
            "status": record.info.status,
        }
        for task in record.tasks:
            found = task.accuracy
            lines.append(
                {
                    **own,
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
            )
    return pd.DataFrame(lines)


def read_runs(paths: Sequence[str | Path]) -> tuple[list[RunRecord], list[str]]:
    """Read all runs at or below some paths, each once; most without confusion matrices.

    Returns:
        The records, and one line for each run that could not be read.

    Raises:
        GraceError: if a path holds no run, or no run is readable, or there are too many.
    """
    places = list(dict.fromkeys(p.resolve() for path in paths for p in find_runs(path)))
    if len(places) > MAX_RECORDS:
        raise GraceError(f"{len(places)} runs are more than {MAX_RECORDS}", "give fewer of them")
    records: list[RunRecord] = []
    left_out: list[GraceError | OSError] = []
    for place in places:
        try:
            record = read_record(place)
            records.append(record if len(records) < _WHOLE else without_confusion(record))
        except (GraceError, OSError) as error:
            left_out.append(error)
    if not records:
        raise next(iter(left_out), GraceError("no run given"))
    return records, [str(error) for error in left_out]


def numbers_of(records: Iterable[RunRecord | None]) -> "pd.DataFrame":
    """Return a line for each run with a column for each metric; unknown numbers are NaN."""
    import pandas as pd

    lines = [
        [metric.value(record) if record and record.tasks else None for metric in METRICS.values()]
        for record in records
    ]
    return pd.DataFrame(lines, columns=list(METRICS), dtype=float)


def memory_size(record: RunRecord) -> float | None:
    """Return the exemplars that a run may keep; ``None``: their number is not fixed."""
    memory = record.info.config.get("memory")
    size = memory.get("size") if isinstance(memory, dict) else None
    return float(size) if isinstance(size, int) else None


def _megabytes(record: RunRecord) -> float | None:
    """Return the bytes that memory-aligned runs share: backbones, and a full memory of images."""
    size, dataset = memory_size(record), record.info.dataset
    if size is None or dataset is None:
        return None
    channels, height, width = dataset.shape
    weights = 4 * record.tasks[-1].parameters.backbones
    return (weights + size * channels * height * width) / 1e6


def _old(record: RunRecord) -> float | None:
    accuracy = record.tasks[-1].accuracy
    return accuracy.old if accuracy else None


def _new(record: RunRecord) -> float | None:
    accuracy = record.tasks[-1].accuracy
    return accuracy.new if accuracy else None


METRICS: Mapping[str, Metric] = {
    "last": Metric("Last", lambda r: r.last, "%"),
    "average": Metric("Avg", lambda r: r.average, "%"),
    "forgetting": Metric("Forgetting", lambda r: r.forgetting, "points"),
    "old": Metric("Old", _old, "%"),
    "new": Metric("New", _new, "%"),
    "backward_transfer": Metric("BWT", lambda r: r.backward_transfer, "points"),
    "task_aware_last": Metric("TA Last", lambda r: r.task_aware_last, "%"),
    "backbones": Metric("Backbones", lambda r: r.tasks[-1].backbones, digits=0),
    "parameters": Metric("#P", lambda r: r.tasks[-1].parameters.backbones / 1e6, "M"),
    "exemplars": Metric("M", memory_size, digits=0),
    "megabytes": Metric("Backbones and memory", _megabytes, "MB", digits=3),
    "seconds": Metric("Time", lambda r: r.seconds, "s", digits=0),
}
"""The numbers that a study can show and compare."""


_ASIDE = ("seeds.", "engine.", "name", "description", "data.root", "data.streaming")
"""Settings that decide no result; ``engine.precision`` is one that does."""
_MOST_NAMED = 4


@final
@dataclass(frozen=True)
class Group:
    """Runs of one experiment, method, settings and data, each once.

    Args:
        experiment: name of the experiment.
        method: name of the method.
        variant: what sets the group apart from others of its method; may be empty.
        records: the runs by seed; of repetitions the newest finished one.
        notes: what a reader must know.
    """

    experiment: str
    method: str
    variant: str
    records: tuple[RunRecord, ...]
    notes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The method's name, and the settings and data that set the group apart."""
        return f"{self.method} ({self.variant})" if self.variant else self.method

    @property
    def complete(self) -> tuple[RunRecord, ...]:
        """The runs that finished all their tasks."""
        return tuple(record for record in self.records if record.complete)


def group_records(records: Sequence[RunRecord]) -> list[Group]:
    """Group runs by experiment, method, settings and protocol; seeds and execution aside.

    Groups come by experiment, then in the registry's order of methods. Where an experiment has a
    method more than once, a group is labelled with the settings that differ, and with its images.
    """
    members: dict[tuple[str, str, str, str], list[RunRecord]] = {}
    for record in records:
        settings = json.dumps(_deciding(record), sort_keys=True)
        protocol = record.info.fingerprints.get("protocol", "")
        key = (record.info.experiment, record.method, settings, protocol)
        members.setdefault(key, []).append(record)
    places = {method: place for place, method in enumerate(METHODS)}
    order = sorted(members, key=lambda k: (k[0], places.get(k[1], len(places)), k[1]))
    groups = []
    for key in order:
        beside = [json.loads(k[2]) for k in order if k[:2] == key[:2]]
        parts = [_difference(json.loads(key[2]), beside)]
        notes = []
        if sum(k[:3] == key[:3] for k in order) > 1:
            parts.append(f"data: {_images(members[key][0])}, protocol {key[3][:8] or 'unknown'}")
            notes.append(f"{key[0]}: rows of other data have other protocols; do not compare them")
        variant = ", ".join(filter(None, parts))
        groups.append(_group(key[0], key[1], variant, members[key], notes))
    return groups


def _group(
    experiment: str, method: str, variant: str, records: Sequence[RunRecord], notes: list[str]
) -> Group:
    """Make a group of the newest finished repetition of each run."""
    kept: dict[object, RunRecord] = {}
    ended = [(r.complete, as_time(r.info.finished or r.info.started), r.directory) for r in records]
    for _, record in sorted(zip(ended, records, strict=True), key=lambda pair: pair[0]):
        fingerprint = record.info.fingerprints.get("run")
        kept[(fingerprint, record.seed) if fingerprint else record.directory] = record
    counts = sorted(kept.values(), key=lambda r: (-1 if r.seed is None else r.seed, r.directory))
    group = Group(experiment, method, variant, tuple(counts))
    place, left = f"{experiment}/{group.label}", len(counts) - len(group.complete)
    if left:
        notes.append(f"{place}: {left} of {len(counts)} runs unfinished and left out")
    if more := len(records) - len(counts):
        notes.append(
            f"{place}: {counted(more, 'repetition')} of the same run left out (only the newest "
            "finished one counts)"
        )
    return Group(experiment, method, variant, tuple(counts), tuple(notes))


def _images(record: RunRecord) -> str:
    dataset = record.info.dataset
    return f"{_short(dataset.name)}, {dataset.num_train} images" if dataset else "unknown"


def _deciding(record: RunRecord) -> dict[str, Any]:
    """Return the settings that decide a result, except the seeds, by dotted path."""
    flat = flatten(record.info.config)
    return {k: v for k, v in flat.items() if not k.startswith(_ASIDE) or k == "engine.precision"}


def _difference(settings: Mapping[str, Any], beside: Sequence[Mapping[str, Any]]) -> str:
    """Name the settings that differ from those of other groups; few that tell them apart."""
    keys = dict.fromkeys(key for other in beside for key in other)
    differing = [key for key in keys if any(o.get(key) != settings.get(key) for o in beside)]
    left, named = list(beside), list[str]()
    if len(differing) <= _MOST_NAMED:
        left, named = [], differing
    while left := [o for o in left if any(o.get(k) != settings.get(k) for k in differing)]:
        best = max(differing, key=lambda key: sum(o.get(key) != settings.get(key) for o in left))
        left = [other for other in left if other.get(best) == settings.get(best)]
        named.append(best)
    parts = [f"{key.removeprefix('method.')}={_short(settings.get(key))}" for key in named]
    return ", ".join([*parts, "…"] if len(named) < len(differing) else parts)


def _short(value: object) -> str:
    text = (
        "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
    return text if len(text) <= 24 else f"{text[:23]}…"
