"""Which record stands for which run of a study, and what is left to make. Imports no torch.

A run is looked for by the fingerprint of its settings, which needs neither images nor torch. A
record counts as this run only if its versions, and where the images are known its protocol, are the
same too.
"""

import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean, median
from typing import Literal, final

from pydantic import ValidationError

from grace.base.errors import GraceError, GraceWarning
from grace.base.words import counted
from grace.runs.model import RunRecord
from grace.runs.provenance import collect_versions, settings_fingerprint
from grace.runs.record import find_runs, read_record
from grace.runs.run import identify
from grace.settings.experiment import ExperimentSettings
from grace.settings.recipe import Recipe
from grace.studies.cells import (
    RunSpec,
    StudyCell,
    all_runs,
    expansions,
    run_names,
    serves,
    settings_of,
)

State = Literal["done", "replayed", "left", "waiting", "made differently"]
MAX_RECORDS = 10_000
"""The largest number of records that are held in memory at once."""


class LeftOutWarning(GraceWarning):
    """Some records cannot be used, so that their runs count as missing."""


@final
@dataclass(frozen=True)
class Found:
    """The record of a run; replayed: another run that took the same decisions stands for it."""

    record: RunRecord
    is_replayed: bool = False


def without_confusion(record: RunRecord) -> RunRecord:
    """Return a record without its confusion matrices, which take most of its memory."""
    tasks = (task.model_copy(update={"confusion": None}) for task in record.tasks)
    return replace(record, tasks=tuple(tasks))


@final
class Records:
    """Finished runs at or below some folders, by their settings.

    Warns:
        LeftOutWarning: if records cannot be used.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.known: dict[Path, tuple[RunRecord, ExperimentSettings]] = {}
        """All finished runs whose settings this version can read."""
        self._by_settings = defaultdict[str, list[RunRecord]](list)
        self._by_stream = defaultdict[str, list[RunRecord]](list)
        places: dict[Path, None] = {}
        for folder in folders:
            with suppress(GraceError):  # It holds no run.
                places |= dict.fromkeys(find_runs(folder))
        left_out = [why for place in places if (why := self.read(place))]
        if left_out:
            warnings.warn(
                f"{counted(len(left_out), 'record')} cannot be used and "
                f"{'counts' if len(left_out) == 1 else 'count'} as missing: {left_out[0]}"
                + (f"; and {len(left_out) - 1} more" if left_out[1:] else ""),
                LeftOutWarning,
                stacklevel=2,
            )

    def read(self, place: Path) -> str:
        """Read a run that is new or was not finished; return why it cannot be used, or nothing."""
        if place in self.known:
            return ""
        if len(self.known) >= MAX_RECORDS:
            return f"{place} is one more than the {MAX_RECORDS} runs that a study looks through"
        try:
            record = without_confusion(read_record(place))
        except (GraceError, OSError) as error:
            return error.what if isinstance(error, GraceError) else str(error)
        if "run" not in record.info.fingerprints:
            return f"{place} has no fingerprint"
        with suppress(ValidationError):  # Another version's settings.
            settings = ExperimentSettings.model_validate(record.info.config)
            if record.complete:
                self.known[place] = (record, settings)
                self._by_settings[settings_fingerprint(settings)].append(record)
                if (stream := stream_of(settings)) is not None:
                    self._by_stream[stream].append(record)
        return ""

    def equal(self, key: str) -> list[RunRecord]:
        """Return the finished runs whose settings have this fingerprint, of any data, versions."""
        return self._by_settings.get(key, [])

    def alike(self, settings: ExperimentSettings) -> list[RunRecord]:
        """Return the runs that took all the decisions that this one would take.

        They have another threshold, or took from a threshold what this one is given.
        """
        stream, given = stream_of(settings), settings.method.given_expansions
        known = self._by_stream.get(stream, []) if stream is not None else []
        if given is not None:
            return [record for record in known if expansions(record) == list(given)]
        rule = settings.method.threshold_rule
        return [r for r in known if rule is not None and serves(r, rule.initial, rule.decay)]

    def seconds_of(self, settings: ExperimentSettings) -> float | None:
        """Estimate the seconds of a run from finished ones; ``None``: none on this stream.

        Seconds by images × epochs, the median of runs of the same method on the same stream, or
        else of all runs on it.
        """
        stream = _costs_alike(settings)
        known = [pair for pair in self.known.values() if _costs_alike(pair[1]) == stream]
        like = [pair for pair in known if pair[1].method.name == settings.method.name]
        work = [(record, _images_by_epochs(own, record)) for record, own in like or known]
        counts = [(record, images) for record, images in work if images > 0]
        if not counts:  # A method that trains nothing.
            return median(record.seconds for record, _ in like) if like else None
        rate = median(record.seconds / images for record, images in counts)
        return rate * _images_by_epochs(settings, counts[0][0])

    @property
    def bytes_each(self) -> int:
        """The mean size of a record on disk."""
        files = ("run.json", "tasks.jsonl")
        sizes = [sum((place / name).stat().st_size for name in files) for place in self.known]
        return round(fmean(sizes)) if sizes else 15_000


@final
class Plan:
    """The runs of a study: which are found, left, waiting for others, or failed.

    Args:
        cells: of the study.
        records: finished runs.
        any_version: runs count whatever versions of grace and its libraries made them.

    Raises:
        GraceError: if the settings of a run are wrong that needs no other one.
    """

    def __init__(
        self, cells: Sequence[StudyCell], records: Records, *, any_version: bool = False
    ) -> None:
        self.cells = tuple(cells)
        self.runs = all_runs(cells)
        self.names = run_names(cells)
        self.records = records
        self.found: dict[RunSpec, Found] = {}
        """Finished runs."""
        self.left: dict[RunSpec, ExperimentSettings] = {}
        """Runs that can be made now."""
        self.waiting: list[RunSpec] = []
        """Runs that need others first."""
        self.failures: dict[RunSpec, str] = {}
        """Why runs cannot be made, or did not succeed."""
        self.notes: list[str] = []
        """What a reader of the tables must know."""
        self._settings: dict[RunSpec, ExperimentSettings] = {}
        self._keys: dict[RunSpec, str] = {}
        self._versions = None if any_version else collect_versions()
        self._identities: dict[str, Mapping[str, str]] = {}
        self._digests: dict[str, str] = {}
        self._compares_images = False
        self.update()

    def update(self) -> None:
        """Look again at the records for what is found and what can be made now."""
        self.left, self.waiting = {}, []
        for run in self.runs:
            if run in self.failures or run in self.found:
                continue
            try:
                settings = self._resolved(run)
            except GraceError as error:
                if not run.needs:
                    raise
                self.failures[run] = str(error)
                continue
            if settings is None:
                self.waiting.append(run)
            elif (found := self._find(run, settings)) is not None:
                self.found[run] = found
            else:
                self.left[run] = settings

    def compare_images(self) -> None:
        """Find runs by their images too, which are read; what cannot be used is refused now.

        If the images cannot be read, and all runs are found by their settings, a note says so.

        Warns:
            GraceWarning: if runs will be made again because their images or versions differ.
        """
        known = {self._keys[run]: settings for run, settings in self._settings.items()}
        try:
            found = identify(list(known.values()), digests=self._digests)
        except (GraceError, OSError) as error:
            if self.left or self.waiting:
                raise
            self.notes.append(
                "The images were not compared with those of the runs, which were found by "
                f"their settings: {error}"
            )
            return
        self._identities = dict(zip(known, found, strict=True))
        unlike = dict.fromkeys(self.unlike, "with other versions")
        self._compares_images = True
        self.found.clear()
        self.update()
        unlike = dict.fromkeys(self.unlike, "on other images") | unlike
        for how in dict.fromkeys(unlike.values()):
            number = list(unlike.values()).count(how)
            warnings.warn(
                f"{counted(number, 'run')} with these settings {'was' if number == 1 else 'were'} "
                f"found, but made {how}: made again",
                GraceWarning,
                stacklevel=2,
            )

    @property
    def unlike(self) -> list[RunSpec]:
        """Runs to make of which there are records, but made with other images or versions."""
        return [run for run in self.left if self.records.equal(self._keys[run])]

    @property
    def is_over(self) -> bool:
        """True if nothing is left to make."""
        return not self.left and not self.waiting

    def identity(self, run: RunSpec) -> Mapping[str, str]:
        """Return the fingerprints of a run; its images are read unless they are known."""
        key = self._keys[run]
        if key not in self._identities:
            [self._identities[key]] = identify([self._settings[run]], digests=self._digests)
        return self._identities[key]

    def stream(self, run: RunSpec) -> str | None:
        """Return what is equal for runs of a grid that differ by their threshold only."""
        return stream_of(self._settings[run]) if run.is_grid else None

    def state(self, run: RunSpec) -> State:
        """Return what is known of a run."""
        if run in self.found:
            return "replayed" if self.found[run].is_replayed else "done"
        if run in self.left:
            return "made differently" if self.records.equal(self._keys[run]) else "left"
        return "waiting"

    def seconds(self, run: RunSpec) -> float | None:
        """Estimate the seconds of a run; one that waits is like the first that it needs."""
        settings = next(filter(None, map(self._settings.get, (run, *run.needs))), None)
        return None if settings is None else self.records.seconds_of(settings)

    def name_missing(self) -> None:
        """Add the runs that wait for failed ones to the failures."""
        for run in self.waiting:
            needed = [self.names[need] for need in run.needs if need not in self.found]
            self.failures[run] = f"it needs {', '.join(needed)}"

    def _resolved(self, run: RunSpec) -> ExperimentSettings | None:
        if run not in self._settings:

            def record_of(needed: RunSpec) -> RunRecord | None:
                return self.found[needed].record if needed in self.found else None

            settings = settings_of(run, record_of)
            if settings is None:
                return None
            self._settings[run], self._keys[run] = settings, settings_fingerprint(settings)
        return self._settings[run] if all(need in self.found for need in run.needs) else None

    def _find(self, run: RunSpec, settings: ExperimentSettings) -> Found | None:
        equal = self.records.equal(self._keys[run])
        alike = self.records.alike(settings) if run.may_be_replayed else []
        record = next((r for r in [*equal, *alike] if self._is_same(run, r)), None)
        return None if record is None else Found(record, is_replayed=record not in equal)

    def _is_same(self, run: RunSpec, record: RunRecord) -> bool:
        if self._versions is not None and record.info.versions != self._versions:
            return False
        # A run that stands in for another one has another fingerprint of the run.
        return not self._compares_images or (
            record.info.fingerprints.get("protocol") == self.identity(run)["protocol"]
        )


def stream_of(settings: ExperimentSettings) -> str | None:
    """Return a fingerprint that is equal for runs that differ by their threshold only.

    ``None`` if the method has no threshold, or one relative to the first saturation.
    """
    method = settings.method.without_threshold()
    if method is None:
        return None
    return settings_fingerprint(settings.model_copy(update={"method": method}))


def _costs_alike(settings: ExperimentSettings) -> tuple[object, ...]:
    """Return what decides how long an epoch takes."""
    data, scenario = settings.data, settings.scenario
    kept = ("source", "image_size", "max_classes", "max_train_per_class", "augmentation")
    return (
        *(getattr(data, name) for name in kept),
        scenario.base or scenario.increment,
        scenario.increment,
        settings.backbone,
    )


def _images_by_epochs(settings: ExperimentSettings, like: RunRecord) -> float:
    """Return the images × epochs of a run on the stream of a finished one."""
    dataset, sizes, method = like.info.dataset, like.info.task_sizes, settings.method
    if dataset is None or not sizes:
        return 0.0
    epochs = {name: part.epochs for name, part in method if isinstance(part, Recipe)}
    first = epochs.pop("base", 0)
    per_class = dataset.num_train / max(1, sum(sizes))
    if method.traits.memory == "all images":  # It starts again, with those of all tasks so far.
        seen = [*accumulate(sizes)]
        return first * per_class * (seen[-1] if method.trains_last_task_only else sum(seen))
    later = sum(size * per_class + (settings.memory.size or 0) for size in sizes[1:])
    return first * sizes[0] * per_class + sum(epochs.values()) * later
