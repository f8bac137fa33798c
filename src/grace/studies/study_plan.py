"""The plan of a study: what it needs and what is there. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, final

from grace.settings.study import StudySettings
from grace.studies.estimates import bytes_of, seconds_of
from grace.studies.resolving import Resolution, Resolver, same_versions
from grace.studies.run_store import RunStore
from grace.studies.study_cells import (
    RunSpec,
    Selection,
    StudyCell,
    all_runs,
    run_names,
    study_cells,
)

State = Literal["done", "replayed", "left", "waiting", "made differently"]


@final
@dataclass(frozen=True)
class PlannedRun:
    """A run of a study, and what is known of it.

    Args:
        name: name of the first cell that needs it.
        run: the run.
        state: "done"; "replayed": a run with another threshold stands for it; "left": to be made;
            "waiting": it needs another run first; "made differently": there is such a run, but with
            other versions, and it will be made again.
        seconds: estimate for a run to be made; ``None``: there is none.
        record: where its record lies.
    """

    name: str
    run: RunSpec
    state: State
    seconds: float | None = None
    record: Path | None = None

    @property
    def is_done(self) -> bool:
        """True if there is nothing to make."""
        return self.state in ("done", "replayed")


@final
@dataclass(frozen=True)
class StudyPlan:
    """What a study needs, and what is there.

    Args:
        study: the study.
        selection: the part of it.
        cells: cells of its table.
        runs: all runs that they need, each once.
        bytes_each: estimated bytes of a record.
    """

    study: StudySettings
    selection: Selection
    cells: tuple[StudyCell, ...]
    runs: tuple[PlannedRun, ...]
    bytes_each: int

    @property
    def names(self) -> list[str]:
        """Names of all runs."""
        return [planned.name for planned in self.runs]

    @property
    def left(self) -> tuple[PlannedRun, ...]:
        """The runs that are to be made."""
        return tuple(run for run in self.runs if not run.is_done)

    @property
    def seconds(self) -> float | None:
        """Estimated seconds of work of the runs to be made; ``None`` if one is unknown."""
        known = [run.seconds for run in self.left]
        found = [seconds for seconds in known if seconds is not None]
        return sum(found) if len(found) == len(known) else None


def plan_study(
    study: StudySettings, selection: Selection, out: Path, others: Sequence[Path] = ()
) -> StudyPlan:
    """Tell what a study needs and what is there, without images and without torch.

    Args:
        study: the study.
        selection: the part of it.
        out: folder of all studies; it need not exist.
        others: further folders of runs.

    Raises:
        GraceError: for names or settings that are wrong.
    """
    cells = study_cells(study, selection)
    runs = all_runs(cells)
    store = RunStore(out / "runs", others)
    resolver, names = Resolver(runs, store), run_names(cells, runs)
    resolution = resolver.resolve(same_versions)
    planned = [
        PlannedRun(
            names[run],
            run,
            _state(run, resolution),
            0.0 if run in resolution.found else _seconds(run, resolver, store),
            resolution.found[run].record.directory if run in resolution.found else None,
        )
        for run in runs
    ]
    return StudyPlan(study, selection, tuple(cells), tuple(planned), bytes_of(store.records))


def _state(run: RunSpec, resolution: Resolution) -> State:
    if run in resolution.found:
        return "replayed" if resolution.found[run].is_replayed else "done"
    if run in resolution.unlike:
        return "made differently"
    return "left" if run in resolution.left else "waiting"


def _seconds(run: RunSpec, resolver: Resolver, store: RunStore) -> float | None:
    """Estimate a run; one that waits for others like the run that it needs."""
    settings = next(filter(None, map(resolver.known, (run, *run.needs))), None)
    return None if settings is None else seconds_of(settings, store.known)
