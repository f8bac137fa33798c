"""The cells of a study: row × protocol × seed, and the run that each needs. Imports no torch."""

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import final

from grace.base.errors import GraceError
from grace.base.words import did_you_mean
from grace.nn.threshold import Threshold
from grace.runs.model import RunRecord
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import ConfigWarning, load_experiment
from grace.settings.problems import refuse_learner_settings
from grace.studies.paper import place_in_paper, row_in_paper
from grace.studies.schema import MAX_RUNS, RowSettings, ScaleSettings, StudySettings


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


def scale_name(study: StudySettings, name: str) -> str:
    """Return the name of the scale that is meant; empty: "small" if there is one, else the first.

    Raises:
        GraceError: if the study has no such scale.
    """
    if not name:
        return "small" if "small" in study.scales else next(iter(study.scales))
    _refuse_unknown("scale", [name], study.scales, study)
    return name


def study_cells(study: StudySettings, selection: Selection) -> list[StudyCell]:
    """List the cells of a study, protocol by protocol and seed by seed.

    Raises:
        GraceError: for a name that the study or the paper does not have, one that is given twice,
            or an override that would give all runs one method or seed.

    Warns:
        ConfigWarning: if a given override has no effect in any run.
    """
    at = scale_name(study, selection.scale)
    scale = study.scales[at]
    _refuse_unknown("protocol", selection.protocols, scale.protocols, study)
    _refuse_unknown("row", selection.rows, study.rows, study)
    chosen = {"protocol": selection.protocols, "row": selection.rows, "seed": selection.seeds}
    for kind, given in chosen.items():
        _refuse_repeated(kind, given)
    for override in selection.overrides:
        _refuse_single(override)
    protocols, rows = selection.protocols or scale.protocols, selection.rows or study.rows
    seeds = selection.seeds or scale.seeds
    count = sum(study.rows[row].num_rows for row in rows) * len(protocols) * len(seeds)
    if count > MAX_RUNS:
        raise GraceError(f"this choice has {count} runs; at most {MAX_RUNS} can be planned")
    for protocol in protocols:
        table, _, _ = place_in_paper(study.paper, scale.protocols[protocol].paper, protocol)
        for row in rows if table else ():
            row_in_paper(table, study.rows[row].paper, row)
    cells = [
        StudyCell(name, protocol, seed, run)
        for protocol in protocols
        for seed in seeds
        for row in rows
        if stands(study.rows[row], at, protocol)
        for name, run in _runs(study, scale, protocol, seed, row, selection.overrides)
    ]
    if not cells:
        raise GraceError(
            f"study '{study.name}' has no run for this choice of rows, protocols and scale"
        )
    # A point of a grid has its values' name.
    _refuse_repeated("cell", [cell.name for cell in cells])
    for cell in cells:
        if cell.run.expands_like and cell.seed == cells[0].seed:
            # Refused now, and not when what it waits for has been made.
            _loaded(cell.run.experiment, [*cell.run.overrides, "method.expand_at=[]"])
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


def run_names(cells: Sequence[StudyCell]) -> dict[RunSpec, str]:
    """Name every run after its cell, or after the cell that needs it."""
    names: dict[RunSpec, str] = {}
    for cell in cells:
        names.setdefault(cell.run, cell.name)
    for cell in cells:
        for number, needed in enumerate(all_runs([cell])[:-1], start=1):
            names.setdefault(needed, f"{cell.name} needs {number}")
    return names


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
    settings = _loaded(run.experiment, overrides)[0]
    if settings.engine.precision == "auto":
        raise GraceError(
            "engine.precision=auto can mean something else on each machine of a study",
            "choose float32 or bfloat16",
        )
    return settings


def aligned_size(
    plain: RunRecord, reference: RunRecord, images_per_backbone: int | None = None
) -> int:
    """Return the exemplars with which a method costs what the reference costs.

    Only backbones count (docs/protocols.md#memory-aligned-counts).

    Args:
        plain: finished run of the method with the usual memory M0.
        reference: finished run of the largest method.
        images_per_backbone: M = M0 + ⌊(P_ref − P)/P_1 · this⌋, with P_1 the mean size of the
            reference's backbones; ``None``: M = M0 + ⌊(P_ref − P) · 4/bytes of a raw image⌋.

    Raises:
        GraceError: if the plain run is larger than the reference, or has no fixed memory.
    """
    base, dataset = plain.info.section("memory").get("size"), plain.info.dataset
    if not isinstance(base, int) or dataset is None:
        raise GraceError(f"{plain.directory} has no memory of a fixed size to align")
    total, own = (run.tasks[-1].parameters.backbones for run in (reference, plain))
    if own > total:
        raise GraceError(
            f"the model has {own} parameters, more than the reference's {total}",
            "take the larger one as reference",
        )
    if images_per_backbone is None:
        return base + (total - own) * 4 // max(1, prod(dataset.shape))
    count = reference.tasks[-1].backbones
    return base + (total - own) * images_per_backbone * count // max(1, total)


def _runs(
    study: StudySettings,
    scale: ScaleSettings,
    protocol: str,
    seed: int,
    row: str,
    given: Sequence[str],
) -> Iterator[tuple[str, RunSpec]]:
    """Yield the runs of a row: one, or one for each point of its grid, by the name in tables."""
    stream = scale.protocols[protocol]

    def spec(parent: str, settings: Sequence[str], *, plain: bool = False) -> RunSpec:
        own = study.rows[parent]
        overrides = (
            f"method={own.method}",
            *scale.set,
            *stream.set,
            *settings,
            *own.probe_overrides,
            *given,
            f"seed={seed}",
        )
        aligned = None
        if own.memory == "aligned" and not plain:
            reference = spec(*study.points[study.reference], plain=True)
            plain_run = spec(parent, settings, plain=True)
            aligned = Aligned(plain_run, reference, scale.images_per_backbone)
        like = own.expand_at.removeprefix("from ") if own.expand_at and not plain else None
        return RunSpec(
            stream.experiment,
            overrides,
            aligned,
            spec(*study.points[like]) if like else None,
            own.grid is not None,
        )

    for name, settings in study.grid_rows(row).items():
        yield name, spec(row, settings)


def stands(row: RowSettings, scale: str, protocol: str) -> bool:
    """Return True if a row has a place in the table of a protocol."""
    at_scale = row.scales is None or scale in row.scales
    return at_scale and (row.protocols is None or protocol in row.protocols)


def _warn_idle(cells: Sequence[StudyCell], overrides: Sequence[str]) -> None:
    """Warn of given settings that have no effect in any run; those of rows may have none."""
    if not overrides:
        return
    keys = [text.partition("=")[0] for text in overrides]
    lines = [set(_loaded(cell.run.experiment, cell.run.overrides)[1]) for cell in cells]
    for line in sorted(set.intersection(*lines)):
        if line.startswith(tuple(keys)):
            warnings.warn(line, ConfigWarning, stacklevel=3)


def _loaded(experiment: str, overrides: Sequence[str]) -> tuple[ExperimentSettings, list[str]]:
    """Resolve one run; return its settings and the warnings about settings without effect."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConfigWarning)
        settings = load_experiment(experiment, overrides)
    refuse_learner_settings(settings)
    return settings, [str(warning.message) for warning in caught]


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


def _refuse_repeated(kind: str, given: Sequence[object]) -> None:
    twice = next((one for one, number in Counter(given).items() if number > 1), None)
    if twice is not None:
        raise GraceError(f"{kind} {twice} is given twice", "name it once")


def _refuse_single(override: str) -> None:
    """Refuse an override that gives every run the same method or seed."""
    key = override.partition("=")[0].strip()
    if key == "method":
        raise GraceError(f"'{override}' would give all runs one method", "choose rows or methods")
    if key == "seed" or key.partition(".")[0] == "seeds":
        raise GraceError(f"'{override}' would give all runs one seed", "use --seeds")
    if key.startswith("method."):
        raise GraceError(
            f"'{override}' would hold for all methods",
            f"write methods.NAME.{key[len('method.') :]}=…",
        )


def serves(record: RunRecord, initial: float, decay: float) -> bool:
    """Return True if a run is also the run of this threshold and decay.

    Its seed and all its other settings must be those wanted; this compares verdicts only, so that
    a run whose expansions were given (``method.expand_at``) serves too. A run that is not finished
    serves nothing.
    """
    if not record.complete:
        return False
    threshold = Threshold(initial=initial, decay=decay)
    for task in record.tasks:
        # The first task and those without a new class decide nothing.
        if task.saturation is None:
            continue
        verdict = threshold.verdict(task.saturation)
        if task.verdict == "compress (budget)":
            verdict = "compress"  # There was no room to grow, whatever the threshold says.
        elif verdict != task.verdict:
            return False
        threshold = threshold.after(verdict)
    return True


def expansions(record: RunRecord) -> list[int]:
    """Return the numbers of the tasks at which a run expanded."""
    return [task.task for task in record.tasks if task.verdict == "grow"]
