"""A study after its runs: its numbers by protocol, row and seed, and those that the paper prints.

Any records can be looked at as such a study: ``compared``.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from grace.base.words import counted
from grace.runs.model import RunRecord, as_time
from grace.settings.load import flatten
from grace.settings.registry import METHODS
from grace.studies.frame import METRICS, numbers_of
from grace.studies.paper import paper_value, place_in_paper, row_in_paper
from grace.studies.plan import Found, Plan, RunSpec, Selection, StudyCell, scale_name, stands
from grace.studies.schema import (
    MetricName,
    ProtocolSettings,
    RowSettings,
    ScaleSettings,
    StudySettings,
)

if TYPE_CHECKING:
    import pandas as pd

REPLAYED = (
    "replayed: not trained, because a finished run that took the same decisions at every task "
    "stands for it (1 of 3 replayed: in one of three runs)"
)
_KEYS = ["protocol", "row", "seed"]


@final
@dataclass(frozen=True)
class StudyResult:
    """A study after its runs.

    Args:
        study: the study.
        selection: the part of it.
        cells: cells of its tables.
        found: records of the runs.
        failures: reasons of the failed runs, by the name of a cell.
        notes: what a reader of its tables must know.
        files: tables, figures and page; empty if no run finished.
    """

    study: StudySettings
    selection: Selection
    cells: Sequence[StudyCell]
    found: Mapping[RunSpec, Found]
    failures: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    files: Sequence[Path] = ()

    @classmethod
    def of(cls, plan: Plan) -> "StudyResult":
        """Return what is found of a plan, and why the rest is not."""
        failures = {run.name: why for run, why in plan.failures.items()}
        return cls(plan.study, plan.selection, plan.cells, plan.found, failures, plan.notes)

    @cached_property
    def records(self) -> tuple[RunRecord, ...]:
        """The records of all cells, each once."""
        found = (self.found[cell.run].record for cell in self.cells if cell.run in self.found)
        return tuple({record.directory: record for record in found}.values())

    @cached_property
    def at(self) -> str:
        """The name of its scale."""
        return scale_name(self.study, self.selection.scale)

    @property
    def scale(self) -> ScaleSettings:
        """Its scale."""
        return self.study.scales[self.at]

    @cached_property
    def protocols(self) -> tuple[str, ...]:
        """The protocols that were chosen."""
        return tuple(dict.fromkeys(cell.protocol for cell in self.cells))

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """The rows that were chosen, points of grids by their own names."""
        return tuple(dict.fromkeys(cell.row for cell in self.cells))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that were chosen."""
        return tuple(dict.fromkeys(cell.seed for cell in self.cells))

    @cached_property
    def _by_cell(self) -> Mapping[tuple[str, str, int], Found | None]:
        return {(c.protocol, c.row, c.seed): self.found.get(c.run) for c in self.cells}

    @cached_property
    def numbers(self) -> "pd.DataFrame":
        """Every metric by protocol, row and seed; NaN where a run is missing."""
        import pandas as pd

        index = pd.MultiIndex.from_tuples(self._by_cell, names=_KEYS)
        records = (one.record if one else None for one in self._by_cell.values())
        return numbers_of(records).set_index(index).sort_index()

    @cached_property
    def paper(self) -> "pd.DataFrame":
        """What the paper prints, in the same form with one seed, 0; NaN where it has nothing."""
        import pandas as pd

        places = list(dict.fromkeys((protocol, row) for protocol, row, _ in self._by_cell))
        lines = [[self._printed(*place, key) for key in METRICS] for place in places]
        index = pd.MultiIndex.from_tuples([(*place, 0) for place in places], names=_KEYS)
        return pd.DataFrame(lines, index=index, columns=list(METRICS), dtype=float).sort_index()

    @cached_property
    def means(self) -> "pd.DataFrame":
        """The mean of every metric over the finished seeds, by protocol and row."""
        return self.numbers.groupby(_KEYS[:2], sort=False).mean()

    @cached_property
    def deviations(self) -> "pd.DataFrame":
        """The standard deviation (n − 1) of every metric, by protocol and row."""
        return self.numbers.groupby(_KEYS[:2], sort=False).std()

    def settings(self, row: str) -> RowSettings:
        """Return the settings of a row, as the study's file has them."""
        return self.study.rows[self.study.points[row][0]]

    def label(self, row: str) -> str:
        """Return the name of a row in tables."""
        return self.settings(row).label or row

    def rows_in(self, protocol: str) -> list[str]:
        """Return the rows that stand in a protocol's table."""
        return [row for row in self.rows if (protocol, row, self.seeds[0]) in self._by_cell]

    def ranked(self, protocol: str) -> list[str]:
        """Return the rows that compete in a protocol."""
        return [row for row in self.rows_in(protocol) if self.settings(row).ranked]

    def grid_rows(self, protocol: str) -> list[str]:
        """Return the rows of grids that stand in a protocol."""
        return [row for row in self.rows_in(protocol) if self.settings(row).grid is not None]

    def lacks(self, protocol: str, *, grids: bool = False) -> bool:
        """Return True if rows were chosen, and others that compete, or are grids, were not."""
        chosen = self.selection.rows or self.study.rows
        left_out = [row for name, row in self.study.rows.items() if name not in chosen]
        wanted = [row for row in left_out if (row.grid is not None if grids else row.ranked)]
        return any(stands(row, self.at, protocol) for row in wanted)

    def runs(self, row: str, protocol: str) -> list[Found]:
        """Return the runs of a row that are there, in the order of seeds."""
        runs = (self._by_cell.get((protocol, row, seed)) for seed in self.seeds)
        return [one for one in runs if one is not None]

    def num_finished(self, row: str, protocol: str) -> int:
        """Count the finished runs of a row."""
        return sum(one.record.complete for one in self.runs(row, protocol))

    def is_complete(self, rows: Iterable[str], protocol: str) -> bool:
        """Return True if all runs of some rows in a protocol are there and finished."""
        own = {(protocol, row) for row in rows}
        cells = [one for key, one in self._by_cell.items() if key[:2] in own]
        return all(one is not None and one.record.complete for one in cells)

    def origin(self, rows: Iterable[str], protocol: str) -> tuple[int, int]:
        """Count the replayed runs of some rows, and all of them."""
        known = [one for row in rows for one in self.runs(row, protocol)]
        return sum(one.is_replayed for one in known), len(known)

    def place_in_paper(self, protocol: str) -> tuple[str, str, str]:
        """Return the paper's table, protocol and data set; no table: the first one is empty."""
        given = self.scale.protocols[protocol].paper
        return place_in_paper(self.study.paper, given, protocol)

    def _printed(self, protocol: str, row: str, key: str) -> float | None:
        table, name, dataset = self.place_in_paper(protocol)
        if not table:
            return None
        table, line = row_in_paper(table, self.settings(row).paper, row)
        return paper_value(table, line, name, key, dataset)


_COLUMNS: Sequence[MetricName] = (
    *("last", "average", "forgetting", "backward_transfer", "task_aware_last"),
    *("backbones", "parameters", "megabytes", "seconds"),
)
_ASIDE = ("seeds.", "engine.", "name", "description", "data.root", "data.streaming")
"""Settings that decide no result; ``engine.precision`` is one that does."""


def compared(records: Sequence[RunRecord]) -> StudyResult:
    """Return any runs as a study: a protocol for each experiment, a row for each kind of run.

    Runs of one kind differ in their seeds only; of repetitions the newest finished one counts. The
    rows have the registry's order of methods. Where an experiment has a method more than once, its
    rows name the settings that differ, or the images.
    """
    import pandas as pd

    place = {method: place for place, method in enumerate(METHODS)}
    every = pd.DataFrame(
        {
            "experiment": record.info.experiment,
            "place": place.get(record.method, len(place)),
            "method": record.method,
            "settings": json.dumps(_deciding(record), sort_keys=True),
            "protocol": record.info.fingerprints.get("protocol", ""),
            "run": record.info.fingerprints.get("run") or str(record.directory),
            "seed": -1 if record.seed is None else record.seed,
            "is_complete": record.complete,
            "ended": as_time(record.info.finished or record.info.started).timestamp(),
            "record": record,
        }
        for record in records
    )
    kind = ["experiment", "place", "method", "settings", "protocol"]
    kept = every.sort_values(["is_complete", "ended"]).drop_duplicates(
        [*kind, "run", "seed"], keep="last"
    )
    notes, left = [], len(every) - len(kept)
    if left:
        notes.append(f"{counted(left, 'repetition')} of a run left out: the newest finished counts")
    cells, rows, found = list[StudyCell](), dict[str, RowSettings](), dict[RunSpec, Found]()
    for (experiment, _, method), alike in kept.groupby(kind[:3]):
        groups = dict(list(alike.sort_values("seed").groupby(kind[3:], sort=False)))
        for label, runs in zip(_labels(method, groups), groups.values(), strict=True):
            rows.setdefault(label, RowSettings.model_construct(method=method))
            for number, record in enumerate(runs["record"], start=1):
                spec = RunSpec(f"{label} {experiment} {number}", experiment, (label, str(number)))
                cells.append(StudyCell(label, experiment, number, spec))
                found[spec] = Found(record)
        if alike.groupby("settings")["protocol"].nunique().max() > 1:
            notes.append(f"{experiment}: {method} ran on other data too; do not compare its rows")
    scale = ScaleSettings.model_construct(
        protocols={name: ProtocolSettings(experiment=name) for name in kept["experiment"]}
    )
    numbers = numbers_of(kept["record"])
    study = StudySettings.model_construct(
        name="comparison",
        scales={"all": scale},
        rows=rows,
        columns=tuple(key for key in _COLUMNS if numbers[key].notna().any()),
    )
    return StudyResult(study, Selection(), cells, found, notes=notes)


def _labels(method: str, groups: Mapping[Any, "pd.DataFrame"]) -> Iterator[str]:
    """Yield a method's name with the settings, and the data, that set a group apart."""
    every = [json.loads(settings) for settings, _ in groups]
    keys = dict.fromkeys(key for settings in every for key in settings)
    differing = [key for key in keys if any(s.get(key) != every[0].get(key) for s in every)]
    for (text, protocol), runs in groups.items():
        settings, data = json.loads(text), runs["record"].iloc[0].info.dataset
        parts = [f"{key.removeprefix('method.')}={_text(settings.get(key))}" for key in differing]
        if sum(text == other for other, _ in groups) > 1:
            images = f"{data.name}, {data.num_train} images" if data else "unknown"
            parts.append(f"data: {images}, protocol {protocol[:8] or 'unknown'}")
        yield f"{method} ({', '.join(parts)})" if parts else method


def _text(value: object) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _deciding(record: RunRecord) -> dict[str, Any]:
    """Return the settings that decide a result, except the seeds, by dotted path."""
    flat = flatten(record.info.config)
    return {k: v for k, v in flat.items() if not k.startswith(_ASIDE) or k == "engine.precision"}
