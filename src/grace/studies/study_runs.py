"""The runs of a study as a source of jobs: each comes when the records that it needs are there."""

import math
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import final

from typing_extensions import override

from grace.base.errors import GraceError, GraceWarning
from grace.base.files import inside
from grace.base.words import counted
from grace.runs import RunRecord, settings_fingerprint
from grace.runs.run import identify
from grace.settings.experiment import ExperimentSettings
from grace.studies.cells import Cell
from grace.studies.first_tasks import foreign_first_tasks
from grace.studies.making import Wanted, job_of
from grace.studies.pool import Job, JobSource, Watcher
from grace.studies.reservations import Reservations
from grace.studies.resolving import Found, Resolution, Resolver, same_versions
from grace.studies.run_store import RunStore, without_threshold
from grace.studies.search import Search
from grace.studies.study_cells import RunSpec, StudyCell, all_runs, run_names


@final
class StudyRuns(JobSource):
    """The runs of a study while they are made.

    Args:
        cells: the study's cells.
        out: folder of all studies.
        others: further folders of runs.
        watcher: gets the number of runs that are left when a record spares some of them.
        reservations: of the tasks of an array job, which make the runs together; ``None``: this
            process alone makes them.
        search: adds cells while others are being made; ``None``: the given ones are all.
        seconds: pause between two looks at what the other tasks make. Longer: fewer reads through
            the network; shorter: less waiting for their records.
    """

    def __init__(
        self,
        cells: Sequence[StudyCell],
        out: Path,
        others: Sequence[Path],
        watcher: Watcher,
        reservations: Reservations | None = None,
        search: Search | None = None,
        seconds: float = 5.0,
    ) -> None:
        self.found: dict[RunSpec, Found] = {}
        """Records of the finished runs."""
        self.failures: dict[str, str] = {}
        """Reasons of the failed runs, by the name of a cell."""
        self.notes: list[str] = []
        """What a reader of the tables must know."""
        self.left: dict[RunSpec, ExperimentSettings] = {}
        """Runs that can be made now, in order, those that are being made included."""
        self._out = out
        self._watcher = watcher
        self._reservations = reservations
        self._search = search
        self._elsewhere: set[str] = set()
        self._seconds, self._looked = seconds, -math.inf
        self._store = RunStore(out / "runs", others)
        runs = all_runs(cells)
        self._names = run_names(cells, runs)
        self._resolver = Resolver(runs, self._store)
        self._waiting: tuple[RunSpec, ...] = ()
        self._identities: dict[str, Mapping[str, str]] = {}
        self._digests: dict[str, str] = {}
        self._fingerprints: dict[RunSpec, str] = {}
        self._streams: dict[str, str | None] = {}
        self._jobs: dict[str, Job] = {}
        self._begun: set[str] = set()
        self._running: set[str] = set()
        self.at_once: int | None = None
        """Runs at a time; ``None`` if there is nothing to make."""
        self._device = "cpu"
        self._warn_of_repeated(self._update())

    def share(self, device: str, at_once: int) -> None:
        """Set the device of the runs, and how many are made at a time."""
        self._device, self.at_once = device, at_once
        self._update()  # A search uses all of the machines.

    @property
    @override
    def num_left(self) -> int:
        names = {self._fingerprint(run) for run in self.left}
        # One that is over here may have been found already, beside another one.
        return len(self.left) + len(self._waiting) + len(self._running - names)

    @property
    @override
    def is_over(self) -> bool:
        # What waits, waits for a run that is being made, here or elsewhere, or that has failed.
        names = {self._fingerprint(run) for run in self.left}
        return not self._elsewhere or not (self._waiting or names - self._elsewhere)

    @override
    def take(self, running: Sequence[Job]) -> Job | None:
        if self._reservations is not None and time.monotonic() >= self._looked + self._seconds:
            self.look_elsewhere()
        while True:
            beside = [*running, *(self._jobs[name] for name in self._elsewhere)]
            free = map(self._job, self._in_order(beside))
            job = next((job for job in free if job.may_start(beside)), None)
            if job is None or self._reserved(job.log.stem):
                break
        if job is not None:
            self._begun.add(job.log.stem)
            self._running.add(job.log.stem)
        return job

    @override
    def ended(self, job: Job, failure: str | None) -> None:
        name, expected = job.log.stem, self.num_left - 1
        self._running.remove(name)
        alike = [run for run in self.left if self._fingerprint(run) == name]
        self._store.refresh(elsewhere=False)
        if self._is_recorded(name):
            failure = None
        else:
            failure = failure or "its record is not complete"
            self._fail(alike, failure)
        if self._reservations is not None:
            self._reservations.release(name, failure)
        self._update()
        self._fail_unlike(alike)
        if self.num_left != expected:
            self._watcher.left(self.num_left)

    def _is_recorded(self, name: str) -> bool:
        place = inside(self._out, "runs", name)
        return any(record.directory == place for record in self._store.records)

    def look_elsewhere(self) -> None:
        """Find what the other tasks of the array job have made, and what they are making."""
        reservations = self._reservations
        assert reservations is not None
        self._looked = time.monotonic()
        self._store.refresh(elsewhere=False)
        self._update()
        names = {run: self._fingerprint(run) for run in self.left}
        for run, name in names.items():
            if (why := reservations.failure(name)) is not None:
                self._fail([run], why)
        self._elsewhere = {
            name
            for run, name in names.items()
            if run in self.left and name not in self._begun and reservations.is_taken(name)
        }
        for run, name in names.items():
            if name in self._elsewhere:
                self._job(run)

    def _reserved(self, name: str) -> bool:
        """Reserve a run for this process; return False if another task has it, or has made it.

        After False the run is no longer among those that may be made now.
        """
        if self._reservations is None:
            return True
        if not self._reservations.take(name):
            self._elsewhere.add(name)
            return False
        self._store.refresh(elsewhere=False)
        if not self._is_recorded(name) and self._reservations.failure(name) is None:
            return True
        self._reservations.release(name)
        self.look_elsewhere()  # What waited for it may be made now.
        self._fail_unlike([run for run in self.left if self._fingerprint(run) == name])
        return False

    def name_missing(self) -> None:
        """Add the runs that are missing because of others to the failures."""
        for run in self._waiting:
            needed = [self._names[need] for need in run.needs if need not in self.found]
            self.failures[self._names[run]] = f"it needs {', '.join(needed)}"
        records = [*self._store.records, *(one.record for one in self.found.values())]
        foreign = foreign_first_tasks(records)
        for run, one in self.found.items():
            if one.record.directory in foreign:
                self.failures[self._names[run]] = foreign[one.record.directory]

    def _fail_unlike(self, runs: Sequence[RunSpec]) -> None:
        """Give up the runs whose record is found by nothing but its place.

        Their settings mean something else where they ran.
        """
        self._fail([run for run in runs if run in self.left], "its record has other settings")

    def _fail(self, runs: Sequence[RunSpec], why: str) -> None:
        for run in runs:
            self.failures[self._names[run]] = why
            self.left.pop(run, None)

    def _update(self) -> Resolution:
        """Find the records that are there, and what can be made now; return all that was found."""
        while True:
            resolution = self._resolved()
            self.found = {run: self._adopted(found) for run, found in resolution.found.items()}
            for run, error in resolution.refused.items():
                self.failures[self._names[run]] = str(error)
            self._waiting = resolution.waiting
            self.left = {
                run: settings
                for run, settings in resolution.left.items()
                if self._names[run] not in self.failures
            }
            new = self._searched()
            if not new:
                return resolution
            runs = all_runs(new)
            self._names |= run_names(new, runs)
            self._resolver.add(runs)

    def _warn_of_repeated(self, resolution: Resolution) -> None:
        """Warn of runs that are made again, though others with their settings are finished."""
        made = Counter[bool]()
        for run, record in resolution.unlike.items():
            made[same_versions(self._resolver.settings(run), record)] += 1
        for is_same, number in made.items():
            how = "on other images" if is_same else "with other versions"
            warnings.warn(
                f"{counted(number, 'run')} with these settings {'was' if number == 1 else 'were'} "
                f"found, but made {how}: made again",
                GraceWarning,
                stacklevel=2,
            )

    def _searched(self) -> Sequence[StudyCell]:
        """Return the cells that a search adds, given what is finished."""
        if self._search is None:
            return ()
        room = (self.at_once or 1) - len(self.left)
        return self._search.advance(self._record_of, self._has_failed, self._store.pairs, room)

    def _has_failed(self, run: RunSpec) -> bool:
        return self._names.get(run) in self.failures

    def _record_of(self, run: RunSpec) -> RunRecord | None:
        if run in self.found:
            return self.found[run].record
        if run not in self._names:  # A search asks for runs that it may add.
            self._identify([self._resolver.settings(run)])
        found = self._resolver.find(run, self._is_same)
        return None if found is None else found.record

    def _resolved(self) -> Resolution:
        """Find records that have the data and versions of this machine."""
        while True:
            resolution = self._resolver.resolve(self._is_same)
            new = [s for s in resolution.left.values() if self._identity(s) is None]
            if not new:
                return resolution
            by_versions = self._resolver.resolve(same_versions)
            try:
                known = (self._resolver.known(run) for run in by_versions.found)
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
        """Compute the fingerprints of runs; images are read once for all of them."""
        new = {settings_fingerprint(settings): settings for settings in runs}
        for key in new.keys() & self._identities.keys():
            del new[key]
        found = identify(list(new.values()), digests=self._digests)
        self._identities |= dict(zip(new, found, strict=True))

    def _identity(self, settings: ExperimentSettings) -> Mapping[str, str] | None:
        return self._identities.get(settings_fingerprint(settings))

    def _is_same(self, settings: ExperimentSettings, record: RunRecord) -> bool:
        identity = self._identity(settings)
        if identity is None or not same_versions(settings, record):
            return False
        # A run that stands in for another one has another fingerprint of the run.
        return record.info.fingerprints.get("protocol") == identity["protocol"]

    def _adopted(self, found: Found) -> Found:
        """Copy a run that was made elsewhere."""
        record = found.record
        return Found(self._store.adopt(record, record.info.fingerprints["run"]), found.is_replayed)

    def _fingerprint(self, run: RunSpec) -> str:
        """Return the full fingerprint of a run that can be made; runs with the same are equal."""
        if run not in self._fingerprints:
            settings = self.left[run]
            name = self._identities[settings_fingerprint(settings)]["run"]
            self._fingerprints[run] = name
            self._streams[name] = without_threshold(settings)
        return self._fingerprints[run]

    def _in_order(self, running: Sequence[Job]) -> Iterator[RunSpec]:
        """Yield the runs that may be made now; those of grids last, since others may spare them.

        Of every stream of a grid there are as many at a time as are needed to use the machine, and
        the machines of other tasks.
        """
        names = {run: self._fingerprint(run) for run in self.left}
        taken = self._begun | self._elsewhere
        free = {run: name for run, name in names.items() if name not in taken}
        yield from (run for run in free if not run.is_grid)
        streams: dict[str | None, list[RunSpec]] = {}
        for run, name in free.items():
            if run.is_grid:
                streams.setdefault(self._streams[name], []).append(run)
        made = Counter(self._streams[job.log.stem] for job in running)
        others = sum(self._streams[name] in streams for name in self._elsewhere)
        for stream, runs in streams.items():
            if made[stream] < math.ceil(((self.at_once or 1) + others) / len(streams)):
                yield from halved(runs)

    def _job(self, run: RunSpec) -> Job:
        name = self._fingerprint(run)
        if name not in self._jobs:
            settings = self.left[run]
            identity = self._identities[settings_fingerprint(settings)]
            wanted = Wanted(
                Cell(
                    settings.method.name, settings.seeds.initialisation, settings, self._names[run]
                ),
                inside(self._out, "runs", name),
                inside(self._out, "cells", f"{name}.yaml"),
                inside(self._out, "logs", f"{name}.txt"),
                identity["first_task"],
            )
            first_tasks = self._out / "first-tasks"
            self._jobs[name] = job_of(wanted, self._device, self.at_once or 1, first_tasks)
        return self._jobs[name]


def halved(runs: Sequence[RunSpec]) -> list[RunSpec]:
    """Order runs so that the first ones are far from each other: the middle, then of each half."""
    if not runs:
        return []
    middle = len(runs) // 2
    before, after = halved(runs[:middle]), halved(runs[middle + 1 :])
    between = [run for pair in zip(before, after, strict=False) for run in pair]
    return [runs[middle], *between, *before[len(after) :], *after[len(before) :]]
