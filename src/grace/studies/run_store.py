"""The runs of all studies: found by what decides them, wherever they were made.

A run is looked for by the fingerprint of its settings, which needs neither images nor torch. It
counts as the same run only if its full fingerprint, with data and versions, is the same too.
"""

import warnings
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import final

from pydantic import ValidationError

from grace.base.atomic import write_bytes
from grace.base.errors import GraceError, GraceWarning
from grace.base.files import inside, read_given
from grace.base.words import counted
from grace.runs import RunRecord, find_runs, read_record, settings_fingerprint
from grace.runs.resuming import tidy
from grace.settings.experiment import ExperimentSettings
from grace.studies.first_tasks import first_network
from grace.studies.replay import expansions, serves

MAX_BYTES = 128 * 2**20


class LeftOutWarning(GraceWarning):
    """Some records cannot be used, so that their runs count as missing."""


@final
class RunStore:
    """Finished runs by their settings.

    Args:
        directory: ``OUT/runs``, a directory for each run, named by its full fingerprint.
        others: further run directories, or folders of them at any depth; they are only read.

    Warns:
        LeftOutWarning: if records cannot be used.
    """

    def __init__(self, directory: Path, others: Sequence[Path] = ()) -> None:
        self.directory = directory
        self._others = tuple(others)
        self._records: dict[Path, RunRecord] = {}
        self._settings: dict[Path, ExperimentSettings | None] = {}
        self._by_settings = defaultdict[str, list[RunRecord]](list)
        self._by_stream = defaultdict[str, list[RunRecord]](list)
        self._trained: dict[tuple[str, str], RunRecord] = {}
        if left_out := self.refresh():
            warnings.warn(
                f"{counted(len(left_out), 'record')} cannot be used and "
                f"{'counts' if len(left_out) == 1 else 'count'} as missing: {left_out[0]}"
                + (f"; and {len(left_out) - 1} more" if left_out[1:] else ""),
                LeftOutWarning,
                stacklevel=3,
            )

    @property
    def records(self) -> tuple[RunRecord, ...]:
        """All finished runs."""
        return tuple(self._records.values())

    @property
    def known(self) -> list[tuple[ExperimentSettings, RunRecord]]:
        """All finished runs whose settings this version can read, with these."""
        settings = ((self._settings[place], record) for place, record in self._records.items())
        return [(found, record) for found, record in settings if found is not None]

    @property
    def pairs(self) -> list[tuple[float, float]]:
        """The thresholds and decays of all finished runs that have them, each pair once."""
        rules = (settings.method.threshold_rule for settings, _ in self.known)
        return list(dict.fromkeys((rule.initial, rule.decay) for rule in rules if rule is not None))

    def refresh(self, *, elsewhere: bool = True) -> list[str]:
        """Read the runs that are new or were not finished.

        Args:
            elsewhere: also those outside ``OUT/runs``.

        Returns:
            Why records were left out.
        """
        left_out: list[str] = []
        for place in self._places(elsewhere=elsewhere):
            if place in self._records:
                continue
            try:
                record = read_record(place)
            except (GraceError, OSError) as error:
                left_out.append(error.what if isinstance(error, GraceError) else str(error))
                continue
            if "run" not in record.info.fingerprints:
                left_out.append(f"{place} has no fingerprint")
            elif record.complete:
                self._add(place, record)
        return left_out

    def _add(self, place: Path, record: RunRecord) -> None:
        self._records[place] = record
        if (network := first_network(record)) is not None and not network.is_taken:
            self._trained[network.first_task, network.sha256] = record
        settings = self._settings[place] = settings_in(record)
        if settings is None:
            return
        self._by_settings[settings_fingerprint(settings)].append(record)
        if (stream := without_threshold(settings)) is not None:
            self._by_stream[stream].append(record)

    def candidates(self, settings: ExperimentSettings) -> list[RunRecord]:
        """Return the finished runs with equal settings; their data and versions may differ."""
        return self._by_settings.get(settings_fingerprint(settings), [])

    def stands_in(self, settings: ExperimentSettings) -> list[RunRecord]:
        """Return the runs that took all the decisions that this one would take.

        They have another threshold, or took from a threshold what this one is given.
        """
        stream, given = without_threshold(settings), settings.method.given_expansions
        known = self._by_stream.get(stream, []) if stream is not None else []
        if given is not None:
            return [record for record in known if expansions(record) == list(given)]
        rule = settings.method.threshold_rule
        return [r for r in known if rule is not None and serves(r, rule.initial, rule.decay)]

    def adopt(self, record: RunRecord, fingerprint: str) -> RunRecord:
        """Copy a run that was made elsewhere into the store, where it is found from now on.

        The run that trained its first task comes along, if it is known: it shows that the network
        which this one took over is genuine.

        Args:
            record: a finished run.
            fingerprint: its full fingerprint, which names its directory here.
        """
        place, network = inside(self.directory, fingerprint), first_network(record)
        if network is not None and network.is_taken:
            trainer = self._trained.get((network.first_task, network.sha256))
            if trainer is not None and trainer.directory.parent != self.directory:
                self.adopt(trainer, trainer.info.fingerprints["run"])
        if record.directory.parent == self.directory:
            tidy(record.directory)
            return record
        begun = any((place / name).exists() for name in ("run.json", "lock"))
        if not begun:  # Or a copy of it was cut off. Another task may be making the same copy.
            place.mkdir(parents=True, exist_ok=True)
            for name in ("tasks.jsonl", "run.json"):  # A run is there as soon as run.json is.
                path = record.directory / name
                write_bytes(place / name, read_given(path, str(path), MAX_BYTES))
        with suppress(GraceError, OSError):  # What lies here is damaged, and the other one is not.
            own = read_record(place)
            return own if own.complete else record
        return record

    def _places(self, *, elsewhere: bool) -> list[Path]:
        places: dict[Path, None] = {}
        for root in (self.directory, *(self._others if elsewhere else ())):
            with suppress(GraceError):  # It holds no run.
                places |= dict.fromkeys(find_runs(root))
        return list(places)


def settings_in(record: RunRecord) -> ExperimentSettings | None:
    """Return a record's settings as this version reads them; ``None`` if it cannot."""
    try:
        return ExperimentSettings.model_validate(record.info.config)
    except ValidationError:
        return None


def without_threshold(settings: ExperimentSettings) -> str | None:
    """Return a fingerprint that is equal for runs that differ by their threshold only.

    ``None`` if the method has no threshold, or one relative to the first saturation.
    """
    method = settings.method.without_threshold()
    if method is None:
        return None
    return settings_fingerprint(settings.model_copy(update={"method": method}))
