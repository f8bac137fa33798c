"""The cells of a study: row × protocol × seed, and the run that each needs. Imports no torch."""

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import final

from grace.base.errors import GraceError
from grace.base.words import did_you_mean
from grace.runs import RunRecord
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import ConfigWarning
from grace.settings.study import RowSettings, ScaleSettings, StudySettings
from grace.studies.aligned import aligned_size
from grace.studies.cells import loaded, refuse_repeated, refuse_single
from grace.studies.paper import place_in_paper, row_in_paper
from grace.studies.replay import expansions


@final
@dataclass(frozen=True)
class Aligned:
    """The runs by which a memory is aligned.

    Args:
        plain: run of the same row with the usual memory.
        reference: run of the method whose cost the others may have.
        images_per_backbone: price of one backbone in images; ``None``: its bytes decide.
    """

    plain: "RunSpec"
    reference: "RunSpec"
    images_per_backbone: int | None


@final
@dataclass(frozen=True)
class RunSpec:
    """One run, as far as it is known before others are finished.

    Args:
        experiment: a packaged experiment, or the path of a YAML file.
        overrides: ``key.path=value`` texts.
        aligned: decides the size of the memory; ``None``: the overrides do.
        expands_like: run whose expansions it repeats; ``None``: it decides itself.
        is_grid: it is one of many that may decide alike, so that few of them are made at a time.
    """

    experiment: str
    overrides: tuple[str, ...]
    aligned: Aligned | None = None
    expands_like: "RunSpec | None" = None
    is_grid: bool = False

    @property
    def may_be_replayed(self) -> bool:
        """True if a run that took the same decisions stands for it."""
        return self.is_grid or self.expands_like is not None

    @property
    def needs(self) -> tuple["RunSpec", ...]:
        """The runs that must be finished before this one is known."""
        aligned = (self.aligned.plain, self.aligned.reference) if self.aligned else ()
        return (*aligned, *([self.expands_like] if self.expands_like else []))


@final
@dataclass(frozen=True)
class StudyCell:
    """One cell of a study's table: a row, in one protocol, with one seed."""

    row: str
    protocol: str
    seed: int
    run: RunSpec

    @property
    def name(self) -> str:
        """Row, protocol and seed: "IFL b0i10 s1"."""
        return f"{self.row} {self.protocol} s{self.seed}"


@final
@dataclass(frozen=True)
class Selection:
    """The part of a study that is made.

    Args:
        scale: name of a scale; empty: "small" if there is one, else the first.
        protocols: names; empty: all of the scale.
        rows: names as in the file; empty: all.
        seeds: empty: those of the scale.
        overrides: ``key.path=value`` texts for every run.
    """

    scale: str = ""
    protocols: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    overrides: tuple[str, ...] = ()


def scale_of(study: StudySettings, name: str) -> ScaleSettings:
    """Return a scale by its name; empty: "small" if there is one, else the first.

    Raises:
        GraceError: if the study has no such scale.
    """
    return study.scales[scale_name(study, name)]


def scale_name(study: StudySettings, name: str) -> str:
    """Return the name of the scale that is meant; see :func:`scale_of`."""
    if not name:
        return "small" if "small" in study.scales else next(iter(study.scales))
    _refuse_unknown("scale", [name], study.scales, study)
    return name


def study_cells(study: StudySettings, selection: Selection) -> list[StudyCell]:
    """List the cells of a study, protocol by protocol and seed by seed.

    Args:
        study: the study.
        selection: the part of it.

    Raises:
        GraceError: for a name that the study or the paper does not have, one that is given twice,
            or an override that would give all runs one method or seed.

    Warns:
        ConfigWarning: if a given override has no effect in any run.
    """
    scale = scale_of(study, selection.scale)
    _refuse_unknown("protocol", selection.protocols, scale.protocols, study)
    _refuse_unknown("row", selection.rows, study.rows, study)
    chosen = {"protocol": selection.protocols, "row": selection.rows, "seed": selection.seeds}
    for kind, given in chosen.items():
        refuse_repeated(kind, given)
    for override in selection.overrides:
        refuse_single(override)
    for protocol in selection.protocols or scale.protocols:
        table, _, _ = place_in_paper(study.paper, scale.protocols[protocol].paper, protocol)
        for row in selection.rows or study.rows if table else ():
            row_in_paper(table, study.rows[row].paper, row)
    cells = [
        StudyCell(name, protocol, seed, run)
        for protocol in selection.protocols or scale.protocols
        for seed in selection.seeds or scale.seeds
        for row in selection.rows or study.rows
        if stands(study.rows[row], scale_name(study, selection.scale), protocol)
        for name, run in _runs(study, scale, protocol, seed, row, selection.overrides)
    ]
    if not cells:
        raise GraceError(
            f"study '{study.name}' has no run for this choice of rows, protocols and scale"
        )
    # A point of a grid has its values' name.
    refuse_repeated("cell", [cell.name for cell in cells])
    for cell in cells:
        if cell.run.expands_like and cell.seed == cells[0].seed:
            # Refused now, and not when what it waits for has been made.
            loaded(cell.run.experiment, [*cell.run.overrides, "method.expand_at=[]"])
    _warn_idle(cells, selection.overrides)
    return cells


def all_runs(cells: Sequence[StudyCell]) -> list[RunSpec]:
    """List the runs of cells and those that they need, each once and after those it needs."""
    found: dict[RunSpec, None] = {}

    def add(run: RunSpec) -> None:
        for needed in run.needs:
            add(needed)
        found[run] = None

    for cell in cells:
        add(cell.run)
    return list(found)


def settings_of(
    run: RunSpec, record_of: Callable[[RunSpec], RunRecord | None]
) -> ExperimentSettings | None:
    """Resolve a run; ``None`` while a run that it needs is not finished.

    Args:
        run: the run.
        record_of: returns the record of a finished run.

    Raises:
        GraceError: if a setting is wrong, or the plain run is larger than the reference.
    """
    overrides = list(run.overrides)
    if run.aligned is not None:
        plain, reference = record_of(run.aligned.plain), record_of(run.aligned.reference)
        if plain is None or reference is None:
            return None
        size = aligned_size(plain, reference, run.aligned.images_per_backbone)
        overrides.append(f"memory.size={size}")
    if run.expands_like is not None:
        like = record_of(run.expands_like)
        if like is None:
            return None
        overrides.append(f"method.expand_at={expansions(like)}")
    settings = loaded(run.experiment, overrides)[0]
    if settings.engine.precision == "auto":
        raise GraceError(
            "engine.precision=auto can mean something else on each machine of a study",
            "choose float32 or bfloat16",
        )
    return settings


def _runs(
    study: StudySettings,
    scale: ScaleSettings,
    protocol: str,
    seed: int,
    row: str,
    given: Sequence[str],
) -> Iterator[tuple[str, RunSpec]]:
    """Yield the runs of a row: one, or one for each point of its grid, by the name in tables."""

    def spec(name: str, *, plain: bool = False) -> RunSpec:
        parent = parent_of(study, name)
        own, stream = study.rows[parent], scale.protocols[protocol]
        overrides = (
            f"method={own.method}",
            *scale.set,
            *stream.set,
            *study.grid_rows(parent)[name],
            *own.probe_overrides,
            *given,
            f"seed={seed}",
        )
        aligned = None
        if own.memory == "aligned" and not plain:
            reference = spec(study.reference, plain=True)
            aligned = Aligned(spec(name, plain=True), reference, scale.images_per_backbone)
        like = own.expand_at.removeprefix("from ") if own.expand_at and not plain else None
        return RunSpec(
            stream.experiment,
            overrides,
            aligned,
            spec(like) if like else None,
            own.grid is not None,
        )

    for name in study.grid_rows(row):
        yield name, spec(name)


def parent_of(study: StudySettings, name: str) -> str:
    """Return the row of the file that a row of the table comes from."""
    return name if name in study.rows else next(r for r in study.rows if name in study.grid_rows(r))


def stands(row: RowSettings, scale: str, protocol: str) -> bool:
    """Return True if a row has a place in the table of a protocol."""
    at_scale = row.scales is None or scale in row.scales
    return at_scale and (row.protocols is None or protocol in row.protocols)


def _warn_idle(cells: Sequence[StudyCell], overrides: Sequence[str]) -> None:
    """Warn of given settings that have no effect in any run; those of rows may have none."""
    if not overrides:
        return
    keys = [text.partition("=")[0] for text in overrides]
    lines = [set(loaded(cell.run.experiment, cell.run.overrides)[1]) for cell in cells]
    for line in sorted(set.intersection(*lines)):
        if line.startswith(tuple(keys)):
            warnings.warn(line, ConfigWarning, stacklevel=3)


def _refuse_unknown(
    kind: str, names: Sequence[str], known: Collection[str], study: StudySettings
) -> None:
    for name in names:
        if name not in known:
            grids = (row for row in study.rows if kind == "row" and name in study.grid_rows(row))
            point = next((f": it is a point of row '{row}'" for row in grids), "")
            hint = point or did_you_mean(name, list(known))
            raise GraceError(
                f"study '{study.name}' has no {kind} '{name}'{hint} (known: {', '.join(known)})"
            )


def run_names(cells: Sequence[StudyCell], runs: Sequence[RunSpec]) -> dict[RunSpec, str]:
    """Name every run after its cell, or after the cell that needs it."""
    names: dict[RunSpec, str] = {}
    for cell in cells:
        names.setdefault(cell.run, cell.name)
    for cell in cells:
        for number, needed in enumerate(all_runs([cell])[:-1], start=1):
            names.setdefault(needed, f"{cell.name} needs {number}")
    return {run: names[run] for run in runs}
