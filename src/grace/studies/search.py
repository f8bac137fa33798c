"""Let Optuna look for (threshold, decay): few backbones and a high average accuracy.

Records are the truth: Optuna's storage only remembers which pairs it chose. What is damaged in it,
or says other than the records, is made anew from them.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, final

from grace.base.errors import GraceError
from grace.runs import RunRecord
from grace.settings.study import RowSettings, StudySettings
from grace.studies.search_storage import (
    imported_optuna,
    open_storage,
    refused_by_database,
)
from grace.studies.study_cells import (
    RunSpec,
    Selection,
    StudyCell,
    scale_name,
    study_cells,
)

Pair = tuple[float, float]
"""Threshold and decay, τ₁ and ρ."""
RecordOf = Callable[[RunSpec], RunRecord | None]
"""Returns the record of a finished run; ``None``: it is not finished."""

KEYS = ("method.threshold", "method.threshold_decay")
RANGES = ((0.3, 0.9), (0.85, 1.0))
"""Where pairs are looked for; the published pairs lie inside."""


@final
@dataclass(frozen=True)
class SearchSettings:
    """What is searched, and where Optuna keeps its choices.

    Args:
        count: pairs that Optuna chooses for each protocol, those of earlier calls included. Higher:
            a denser front, and more runs.
        storage: URL of a database; empty: a journal in the folder of the search.
    """

    count: int
    storage: str = ""


@final
@dataclass
class _Protocol:
    """The search in one protocol.

    Args:
        template: a cell for each seed.
        trials: Optuna's study.
        cells: cells of each known or chosen pair.
        running: numbers of Optuna's trials that are not finished, by pair.
        num_chosen: pairs that Optuna chose.
    """

    template: list[StudyCell]
    trials: Any
    cells: dict[Pair, list[StudyCell]] = field(default_factory=dict)
    running: dict[Pair, int] = field(default_factory=dict)
    num_chosen: int = 0


@final
class Search:
    """Asks Optuna for pairs and reports their results to it, separately for each protocol.

    Args:
        study: a study with a grid of threshold and decay. Its pairs are points of the search too if
            their runs are finished.
        selection: the part of it.
        settings: what is searched.
        folder: folder of the search, which exists.

    Raises:
        GraceError: if Optuna is not installed, the study has no such grid, or the storage cannot be
            used.
    """

    def __init__(
        self, study: StudySettings, selection: Selection, settings: SearchSettings, folder: Path
    ) -> None:
        self.settings = settings
        self.selection = replace(selection, scale=scale_name(study, selection.scale), rows=())
        self._optuna = imported_optuna()
        self._study = study
        self._row = _grid_row(study, self.selection.scale)
        assert self._row.grid is not None
        thresholds, decays = (self._row.grid[key] for key in KEYS)
        self._grid: list[Pair] = list(product(thresholds, decays))
        self._folder = folder
        self._storage = open_storage(settings.storage, folder)
        self._templates: dict[str, list[StudyCell]] = {}
        for cell in study_cells(self._study_of({self._grid[0]: ()}), self.selection):
            self._templates.setdefault(cell.protocol, []).append(cell)
        self._protocols: dict[str, _Protocol] = {}

    @property
    def cells(self) -> list[StudyCell]:
        """The cells of all pairs, protocol by protocol."""
        pairs = (cells for one in self._protocols.values() for cells in one.cells.values())
        return [cell for cells in pairs for cell in cells]

    @property
    def study(self) -> StudySettings:
        """The study whose rows are these pairs; claims about rows that it lacks are left out."""
        pairs: dict[Pair, tuple[str, ...]] = {}
        for name, protocol in self._protocols.items():
            for pair in protocol.cells:
                pairs[pair] = (*pairs.get(pair, ()), name)
        return self._study_of(pairs)

    @property
    def note(self) -> str:
        """What a reader of its tables must know."""
        return (
            f"Optuna {self._optuna.__version__} chose {self.settings.count} pairs for each "
            "protocol, for few backbones and a high Avg; finished pairs of the grid stand beside "
            "them."
        )

    @refused_by_database()
    def advance(
        self,
        record_of: RecordOf,
        has_failed: Callable[[RunSpec], bool],
        recorded: Iterable[Pair],
        room: int,
    ) -> list[StudyCell]:
        """Tell Optuna what is finished; return the cells of further pairs.

        Args:
            record_of: returns the record of a finished run.
            has_failed: returns True for a run that failed.
            recorded: pairs of which there may be records.
            room: runs for which the machines have room; no new pair is chosen for less than one.

        Raises:
            GraceError: if the database fails.
        """
        new: list[StudyCell] = []
        if not self._protocols:
            for name, template in self._templates.items():
                self._protocols[name] = self._opened(name, template, record_of, recorded)
            new += self.cells
        for protocol in self._protocols.values():
            for pair in list(protocol.running):
                self._tell(protocol, pair, record_of, has_failed)
            # Known runs need no room: those that are new here may all be.
            while len(new) < room and protocol.num_chosen < self.settings.count:
                new += self._chosen(protocol, record_of)
        return new

    def _opened(
        self, name: str, template: list[StudyCell], record_of: RecordOf, recorded: Iterable[Pair]
    ) -> _Protocol:
        """Open Optuna's study of a protocol, and make it agree with the records."""
        title = self._title(name, [cell.seed for cell in template])
        trials = self._storage.study(title)
        states = self._optuna.trial.TrialState
        told = {
            _pair(trial.params): tuple(trial.values)
            for trial in trials.get_trials(deepcopy=False, states=(states.COMPLETE,))
        }
        # Of a pair that was told there may be no record of its own, but one that stands for it.
        pairs = dict.fromkeys([*self._grid, *recorded, *filter(None, told)])
        known = {
            pair: value
            for pair in pairs
            if _is_inside(pair) and (value := _value(_cells(template, pair), record_of)) is not None
        }
        if any(pair is None or known.get(pair) != values for pair, values in told.items()):
            trials, told = self._storage.made_anew(title), {}
        running = {
            pair: trial.number
            for trial in trials.get_trials(deepcopy=False, states=(states.RUNNING,))
            if (pair := _pair(trial.params)) is not None
        }
        for pair in known.keys() - told.keys() - running.keys():
            trials.add_trial(
                self._optuna.create_trial(
                    params=dict(zip(KEYS, pair, strict=True)),
                    distributions=self._distributions,
                    values=known[pair],
                )
            )
        all_pairs = [*known, *(pair for pair in running if pair not in known)]
        # A call that goes on must not draw what an earlier one drew.
        trials.sampler = _sampler(self._optuna, seed=len(trials.trials))
        return _Protocol(
            template,
            trials,
            {pair: _cells(template, pair) for pair in all_pairs},
            running,
            sum(pair not in self._grid for pair in all_pairs),
        )

    def _title(self, protocol: str, seeds: Sequence[int]) -> str:
        """Name Optuna's study: searches in one database that differ in anything have their own."""
        # Records of one folder say nothing about choices for another one.
        folder = str(self._folder.absolute()) if self.settings.storage else ""
        parts = repr((seeds, self.selection.overrides, folder))
        digest = hashlib.sha256(parts.encode(errors="surrogateescape")).hexdigest()
        return f"{self._study.name} {self.selection.scale} {protocol} {digest[:16]}"

    def _tell(
        self,
        protocol: _Protocol,
        pair: Pair,
        record_of: RecordOf,
        has_failed: Callable[[RunSpec], bool],
    ) -> None:
        """Tell Optuna the value of a pair once its runs are over; a failed pair has none."""
        cells = protocol.cells[pair]
        value = _value(cells, record_of)
        if value is not None:
            protocol.trials.tell(protocol.running.pop(pair), value)
        elif any(has_failed(cell.run) for cell in cells):
            failed = self._optuna.trial.TrialState.FAIL
            protocol.trials.tell(protocol.running.pop(pair), state=failed)

    def _chosen(self, protocol: _Protocol, record_of: RecordOf) -> list[StudyCell]:
        """Let Optuna choose a pair; return its cells, or nothing if it is known."""
        trial = protocol.trials.ask(fixed_distributions=self._distributions)
        pair = _pair(trial.params)
        assert pair is not None
        if pair in protocol.cells:
            value = _value(protocol.cells[pair], record_of)
            failed = self._optuna.trial.TrialState.FAIL
            protocol.trials.tell(trial, value, state=None if value else failed)
            protocol.num_chosen += pair in self._grid  # So that the search comes to an end.
            return []
        protocol.cells[pair] = _cells(protocol.template, pair)
        protocol.running[pair] = trial.number
        protocol.num_chosen += 1
        return protocol.cells[pair]

    @property
    def _distributions(self) -> dict[str, Any]:
        make = self._optuna.distributions.FloatDistribution
        return {key: make(*limits) for key, limits in zip(KEYS, RANGES, strict=True)}

    def _study_of(self, pairs: dict[Pair, tuple[str, ...]]) -> StudySettings:
        """Return a study with a row for each pair, in its protocols; no protocols: in all."""
        labels = {_label(pair) for pair in pairs}
        claims = (
            claim
            for claim in self._study.claims
            if claim.kind == "fewer-points" or (claim.kind == "on-front" and claim.left in labels)
        )
        rows = {
            _label(pair): self._row.model_copy(
                update={
                    "grid": {key: (value,) for key, value in zip(KEYS, pair, strict=True)},
                    "protocols": protocols or None,
                }
            )
            for pair, protocols in pairs.items()
        }
        changed = {
            "name": search_name(self._study),
            "title": f"{self._study.title or self._study.name}, searched",
            "rows": rows,
            "claims": tuple(claims),
            "delta": "",
        }
        return self._study.model_copy(update=changed)


def search_name(study: StudySettings) -> str:
    """Return the name of the search over a study, which is that of its folder."""
    return f"{study.name}-search"


def _grid_row(study: StudySettings, scale: str) -> RowSettings:
    for row in study.rows.values():
        stands = row.scales is None or scale in row.scales
        if stands and row.grid is not None and set(row.grid) == set(KEYS):
            return row
    raise GraceError(
        f"study '{study.name}' has no grid of {' and '.join(KEYS)} to search in", "search 'grid'"
    )


def _cells(template: Sequence[StudyCell], pair: Pair) -> list[StudyCell]:
    """Return the cells of a pair: those of the template with other values."""
    values = {f"{key}=": f"{key}={value!r}" for key, value in zip(KEYS, pair, strict=True)}

    def changed(text: str) -> str:
        return next((new for start, new in values.items() if text.startswith(start)), text)

    return [
        replace(
            cell,
            row=_label(pair),
            run=replace(cell.run, overrides=tuple(map(changed, cell.run.overrides))),
        )
        for cell in template
    ]


def _value(cells: Sequence[StudyCell], record_of: RecordOf) -> tuple[float, float] | None:
    """Return mean backbones and mean average accuracy over the seeds, if all are finished."""
    records = [record_of(cell.run) for cell in cells]
    found = [record for record in records if record is not None]
    if len(found) < len(records):
        return None
    return (
        fmean(record.tasks[-1].backbones for record in found),
        fmean(record.average or 0.0 for record in found),
    )


def _label(pair: Pair) -> str:
    return "/".join(f"{value:g}" for value in pair)


def _pair(params: dict[str, Any]) -> Pair | None:
    """Round a choice of Optuna: pairs that are nearer decide alike, and names stay short.

    ``None``: this program cannot have chosen it, so that someone else wrote it.
    """
    if set(params) != set(KEYS):
        return None
    pair = round(params[KEYS[0]], 3), round(params[KEYS[1]], 3)
    return pair if _is_inside(pair) else None


def _is_inside(pair: Pair) -> bool:
    return all(
        low <= value <= high and value == round(value, 3)
        for value, (low, high) in zip(pair, RANGES, strict=True)
    )


def _sampler(optuna: Any, seed: int) -> Any:  # noqa: ANN401 - an optional module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The liar is marked experimental.
        # Pairs that are being tried count as bad ones, so that the next is far from them.
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)
