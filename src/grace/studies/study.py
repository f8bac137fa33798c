"""Plan and make a study: all its runs, then its tables, claims and figures.

Layout::

    OUT/runs/<run fingerprint>/      records, shared by all studies
    OUT/cells/, OUT/logs/            settings and output of each run, by the same fingerprint
    OUT/first-tasks/<fingerprint>/   networks of first tasks, shared by the runs that begin alike
    OUT/<study>/                     plan, tables, claims, figures and page of one study
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from typing_extensions import override

from grace.configs.experiment import ExperimentSettings
from grace.configs.study import StudySettings
from grace.experiment import identify
from grace.record import RunRecord, settings_fingerprint
from grace.storage.inside import inside, refuse_path
from grace.storage.lock import exclusive
from grace.studies.cells import Cell
from grace.studies.first_tasks import foreign_first_tasks
from grace.studies.machine import jobs_at_once
from grace.studies.made_study import MadeStudy
from grace.studies.making import Wanted, device_of, jobs_of, make_folders
from grace.studies.pool import Engine, Watcher, carry_out
from grace.studies.resolving import Found, Resolution, Resolver, same_versions
from grace.studies.run_store import RunStore, without_threshold
from grace.studies.study_cells import (
    RunSpec,
    Selection,
    StudyCell,
    all_runs,
    run_names,
    study_cells,
)
from grace.studies.study_files import write_study
from grace.text.refusals import GraceError


def make_study(
    study: StudySettings,
    selection: Selection,
    out: Path,
    watcher: Watcher,
    *,
    others: Sequence[Path] = (),
    at_once: int | None = None,
    command: str = "",
    engine: Engine | None = None,
) -> MadeStudy:
    """Make the runs of a study that are not there; write its tables, claims and figures.

    They are also written after an interruption; the same call then goes on.

    Args:
        study: the study.
        selection: the part of it.
        out: folder of all studies; created if it does not exist.
        watcher: receives the events of the runs.
        others: further folders of runs; a run found there is copied, and nothing there is changed.
        at_once: runs at a time; ``None``: as many as cores and memory allow.
        command: command line to name in the summary.
        engine: carries out the runs; ``None``: processes on this machine.

    Returns:
        The study with its records.

    Raises:
        GraceError: for settings or data that no run can use, or a folder that cannot be used.
        BusyError: if another process makes runs in the same folder.
    """
    cells = study_cells(study, selection)
    directory = inside(out, refuse_path(study.name, "the study's name"))
    out.mkdir(parents=True, exist_ok=True)
    with exclusive(out / "lock", f"the studies in '{out}'"):
        make_folders(out)
        directory.mkdir(exist_ok=True)
        making = _Making(cells, RunStore(out / "runs", others), out, watcher, at_once, engine)
        try:
            making.carry_out()
        finally:
            made = MadeStudy(
                study,
                selection,
                tuple(cells),
                making.found,
                making.failures,
                tuple(making.notes),
                directory,
                making.at_once,
            )
            if making.found:
                write_study(made, command)
    return made


@final
@dataclass
class _Making:
    """The runs of a study while they are made, wave by wave: some wait for others' records."""

    cells: Sequence[StudyCell]
    store: RunStore
    out: Path
    watcher: Watcher
    at_once: int | None
    engine: Engine | None
    found: dict[RunSpec, Found] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _identities: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def carry_out(self) -> None:
        runs = all_runs(self.cells)
        names, resolver = run_names(self.cells, runs), Resolver(runs, self.store)
        while True:
            resolution = self._resolved(resolver)
            self.found = dict(resolution.found)
            self._adopt()
            wave = {
                run: settings
                for run, settings in resolution.left.items()
                if names[run] not in self.failures
            }
            if not wave:
                break
            device = device_of(next(iter(wave.values())))
            self.at_once = self.at_once or jobs_at_once(next(iter(wave.values())), device)
            self._make(
                _spread(wave, self.at_once), names, device, len(wave) + len(resolution.waiting)
            )
        for run in resolution.waiting:
            needed = [names[need] for need in run.needs if need not in resolution.found]
            self.failures[names[run]] = f"it needs {', '.join(needed)}"
        foreign = foreign_first_tasks([one.record for one in self.found.values()])
        for run, one in self.found.items():
            if one.record.directory in foreign:
                self.failures[names[run]] = foreign[one.record.directory]

    def _resolved(self, resolver: Resolver) -> Resolution:
        """Find records that have the data and versions of this machine."""
        while True:
            resolution = resolver.resolve(self._is_same)
            new = [s for s in resolution.left.values() if self._identity(s) is None]
            if not new:
                return resolution
            by_versions = resolver.resolve(same_versions)
            try:
                known = (resolver.known(run) for run in by_versions.found)
                self._identify([*new, *filter(None, known)])
            except (GraceError, OSError) as error:
                if not by_versions.is_complete:
                    raise
                self.notes.append(
                    "The images were not compared with those of the runs, which were found by "
                    f"their settings: {error}"
                )
                return by_versions

    def _identify(self, runs: Sequence[ExperimentSettings]) -> None:
        """Compute the fingerprints of runs; the images are read once for all of them."""
        new = {settings_fingerprint(settings): settings for settings in runs}
        for key in new.keys() & self._identities.keys():
            del new[key]
        found = identify(list(new.values()))
        self._identities |= dict(zip(new, found, strict=True))

    def _identity(self, settings: ExperimentSettings) -> Mapping[str, str] | None:
        return self._identities.get(settings_fingerprint(settings))

    def _is_same(self, settings: ExperimentSettings, record: RunRecord) -> bool:
        identity = self._identity(settings)
        if identity is None or not same_versions(settings, record):
            return False
        # A run that stands in for another one has another fingerprint of the run.
        return record.info.fingerprints.get("protocol") == identity["protocol"]

    def _make(
        self,
        wave: Mapping[RunSpec, ExperimentSettings],
        names: Mapping[RunSpec, str],
        device: str,
        num_left: int,
    ) -> None:
        """Make some runs; those that are equal are made once.

        Args:
            wave: the runs and their settings.
            names: names of all runs.
            device: "cpu" or "cuda".
            num_left: runs that are left, these included.
        """
        wanted: dict[str, Wanted] = {}
        equal: dict[str, list[str]] = {}
        for run, settings in wave.items():
            identity = self._identities[settings_fingerprint(settings)]
            name = identity["run"]
            equal.setdefault(name, []).append(names[run])
            wanted.setdefault(
                name,
                Wanted(
                    Cell(settings.method.name, settings.seeds.initialisation, settings, names[run]),
                    inside(self.out, "runs", name),
                    inside(self.out, "cells", f"{name}.yaml"),
                    inside(self.out, "logs", f"{name}.txt"),
                    identity["first_task"],
                ),
            )
        assert self.at_once is not None
        jobs = jobs_of(list(wanted.values()), device, self.at_once, self.out / "first-tasks")
        try:
            engine = self.engine or carry_out
            self.failures |= engine(jobs, self.at_once, _WaveWatcher(self.watcher, num_left))
        finally:
            self.store.refresh()
        finished = {record.directory for record in self.store.records}
        for name, one in wanted.items():
            if one.place not in finished:
                why = self.failures.get(one.cell.name, "its record is not complete")
                self.failures |= dict.fromkeys(equal[name], why)

    def _adopt(self) -> None:
        """Copy the runs that were made elsewhere."""
        for run, one in self.found.items():
            fingerprint = one.record.info.fingerprints["run"]
            self.found[run] = Found(self.store.adopt(one.record, fingerprint), one.is_replayed)


@final
class _WaveWatcher(Watcher):
    """Passes events on; counts the runs of later waves among those that are left.

    Args:
        watcher: receives the events.
        num_left: runs that are left, those that wait for others included.
    """

    def __init__(self, watcher: Watcher, num_left: int) -> None:
        self._num_left = num_left
        self._watcher = watcher

    @override
    def planned(self, num_left: int, at_once: int) -> None:
        self._watcher.planned(self._num_left, at_once)

    @override
    def cell_started(self, cell: Cell) -> None:
        self._watcher.cell_started(cell)

    @override
    def cell_progressed(self, cell: Cell, num_tasks: int) -> None:
        self._watcher.cell_progressed(cell, num_tasks)

    @override
    def cell_ended(self, cell: Cell, failure: str | None) -> None:
        self._watcher.cell_ended(cell, failure)


def _spread(
    left: Mapping[RunSpec, ExperimentSettings], at_once: int
) -> dict[RunSpec, ExperimentSettings]:
    """Choose the next runs: all but those of grids, of which a finished one may spare others.

    Of every stream of a grid come as many as are needed to use the machine, far from each other;
    none while another run of the same stream is made, which may stand for some of them.
    """
    chosen = {run: settings for run, settings in left.items() if not run.is_grid}
    made = {without_threshold(settings) for settings in chosen.values()}
    streams: dict[str | None, list[RunSpec]] = {}
    for run, settings in left.items():
        if run.is_grid:
            streams.setdefault(without_threshold(settings), []).append(run)
    for runs in [runs for stream, runs in streams.items() if stream not in made]:
        count = min(len(runs), max(1, at_once // len(streams)))
        places = [(2 * number + 1) * len(runs) // (2 * count) for number in range(count)]
        chosen |= {runs[place]: left[runs[place]] for place in places}
    return chosen
