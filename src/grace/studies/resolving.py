"""Find the record of every run of a study, and what is left to make. Imports no torch."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import final

from grace.base.errors import GraceError
from grace.runs import RunRecord, collect_versions
from grace.settings.experiment import ExperimentSettings
from grace.studies.run_store import RunStore
from grace.studies.study_cells import RunSpec, settings_of

Same = Callable[[ExperimentSettings, RunRecord], bool]
"""Returns ``True`` if a record has the data and versions that a run with these settings has."""


@final
@dataclass(frozen=True)
class Found:
    """The record of a run.

    Args:
        record: a finished run.
        is_replayed: it is another run that took the same decisions.
    """

    record: RunRecord
    is_replayed: bool = False


@final
@dataclass(frozen=True)
class Resolution:
    """What is known of the runs of a study.

    Args:
        found: finished runs.
        left: runs to make, with their settings.
        waiting: runs that need others first.
        unlike: of those to make, the ones that were made with other data or versions.
        refused: runs whose settings, taken from others' records, are wrong, and why.
    """

    found: Mapping[RunSpec, Found]
    left: Mapping[RunSpec, ExperimentSettings]
    waiting: tuple[RunSpec, ...]
    unlike: Mapping[RunSpec, RunRecord]
    refused: Mapping[RunSpec, GraceError]

    @property
    def is_complete(self) -> bool:
        """True if every run is finished."""
        return not self.left and not self.waiting and not self.refused


@final
class Resolver:
    """Resolves the runs of a study again and again, while records are added.

    Args:
        runs: each after those that it needs.
        store: finished runs.
    """

    def __init__(self, runs: Iterable[RunSpec], store: RunStore) -> None:
        self._runs = dict.fromkeys(runs)
        self._store = store
        self._settings: dict[RunSpec, ExperimentSettings] = {}

    def add(self, runs: Iterable[RunSpec]) -> None:
        """Add runs to those that are resolved."""
        self._runs |= dict.fromkeys(runs)

    def resolve(self, same: Same) -> Resolution:
        """Find records for as many runs as possible.

        Args:
            same: compares data and versions.

        Raises:
            GraceError: if the settings of a run are wrong that needs no other one.
        """
        found: dict[RunSpec, Found] = {}
        left: dict[RunSpec, ExperimentSettings] = {}
        unlike: dict[RunSpec, RunRecord] = {}
        refused: dict[RunSpec, GraceError] = {}
        waiting: list[RunSpec] = []
        for run in self._runs:
            try:
                settings = self._settings_of(run, found)
            except GraceError as error:
                if not run.needs:
                    raise
                refused[run] = error
                continue
            if settings is None:
                waiting.append(run)
                continue
            one = self.find(run, same)
            if one is not None:
                found[run] = one
                continue
            left[run] = settings
            if equal := self._store.candidates(settings):
                unlike[run] = equal[0]
        return Resolution(found, left, tuple(waiting), unlike, refused)

    def find(self, run: RunSpec, same: Same) -> Found | None:
        """Find the record of a run that does not wait for another one; ``None``: there is none.

        Args:
            run: the run; it need not be among those that are resolved.
            same: compares data and versions.
        """
        settings = self.settings(run)
        equal = self._store.candidates(settings)
        alike = self._store.stands_in(settings) if run.may_be_replayed else []
        record = next((record for record in [*equal, *alike] if same(settings, record)), None)
        return None if record is None else Found(record, is_replayed=record not in equal)

    def settings(self, run: RunSpec) -> ExperimentSettings:
        """Return the settings of a run that does not wait for another one."""
        found = self._settings.get(run) or self._settings_of(run, {})
        assert found is not None
        return found

    def known(self, run: RunSpec) -> ExperimentSettings | None:
        """Return the settings of a run; ``None`` while it waits for another one."""
        return self._settings.get(run)

    def _settings_of(
        self, run: RunSpec, found: Mapping[RunSpec, Found]
    ) -> ExperimentSettings | None:
        known = self._settings.get(run)
        if known is not None and all(need in found for need in run.needs):
            return known

        def record_of(needed: RunSpec) -> RunRecord | None:
            return found[needed].record if needed in found else None

        settings = settings_of(run, record_of)
        if settings is not None:
            self._settings[run] = settings
        return settings


def same_versions(settings: ExperimentSettings, record: RunRecord) -> bool:
    """Return True if a record was made with the versions that are installed here."""
    return record.info.versions == collect_versions()
