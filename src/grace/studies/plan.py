"""What a study needs: its cells, the run of each, what is found and what is left. No torch.

A run is looked for by the fingerprint of its settings, which needs neither images nor torch. A
record counts as this run only if its versions, and where the images are known its protocol, are the
same too.
"""

import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import prod
from pathlib import Path
from typing import Literal, final

from pydantic import ValidationError

from grace.base.errors import GraceError, GraceWarning
from grace.base.words import counted, did_you_mean_one_of
from grace.nn.threshold import Threshold
from grace.runs.model import RunRecord
from grace.runs.provenance import collect_versions, settings_fingerprint
from grace.runs.record import MAX_RECORDS, find_runs, read_record, without_confusion
from grace.runs.run import identify
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import ConfigWarning, load_experiment
from grace.settings.problems import refuse_learner_settings
from grace.studies.paper import place_in_paper, row_in_paper
from grace.studies.schema import RowSettings, ScaleSettings, StudySettings

State = Literal["done", "replayed", "left", "waiting", "made differently"]


@final
@dataclass(frozen=True)
class RunSpec:
    """One run, as far as it is known before others are finished.

    Args:
        name: row, protocol and seed of the first cell that needs it: "IFL b0i10 s1".
        experiment: a packaged experiment, or the path of a YAML file.
        overrides: ``key.path=value`` texts.
        plain: run of the same row with the usual memory, by whose cost its own is aligned;
            ``None``: the overrides decide the size of its memory.
        reference: run of the method whose cost the others may have.
        images_per_backbone: price of one backbone in images; ``None``: its bytes decide.
        expands_like: run whose expansions it repeats; ``None``: it decides itself.
        is_grid: it is one of many that may decide alike, so that few of them are made at a time.
    """

    name: str = field(compare=False)
    experiment: str
    overrides: tuple[str, ...]
    plain: "RunSpec | None" = None
    reference: "RunSpec | None" = None
    images_per_backbone: int | None = None
    expands_like: "RunSpec | None" = None
    is_grid: bool = False

    @property
    def may_be_replayed(self) -> bool:
        """True if a run that took the same decisions stands for it."""
        return self.is_grid or self.expands_like is not None

    @property
    def needs(self) -> tuple["RunSpec", ...]:
        """The runs that must be finished before this one is known."""
        return tuple(filter(None, (self.plain, self.reference, self.expands_like)))


@final
@dataclass(frozen=True)
class Found:
    """The record of a run; replayed: another run that took the same decisions stands for it."""

    record: RunRecord
    is_replayed: bool = False


@final
@dataclass(frozen=True)
class StudyCell:
    """One cell of a study's table: a row, in one protocol, with one seed."""

    row: str
    protocol: str
    seed: int
    run: RunSpec


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
    """
    at = scale_name(study, selection.scale)
    scale = study.scales[at]
    protocols, rows = selection.protocols or tuple(scale.protocols), selection.rows or study.rows
    seeds = selection.seeds or scale.seeds
    _refuse_unknown("protocol", protocols, scale.protocols, study)
    _refuse_unknown("row", rows, study.rows, study)
    study.refuse_too_many(rows, protocols, seeds, "this choice")
    for override in selection.overrides:
        key = override.partition("=")[0].strip()
        if key in ("method", "seed") or key.startswith(("method.", "seeds.")):
            raise GraceError(
                f"'{override}' would hold for all runs",
                "choose rows, methods or seeds, or write methods.NAME.KEY=…",
            )
    for protocol in protocols:
        table, _, _ = place_in_paper(study.paper, scale.protocols[protocol].paper, protocol)
        for row in rows if table else ():
            row_in_paper(table, study.rows[row].paper, row)
    cells = [
        StudyCell(name, protocol, seed, _run(study, scale, protocol, seed, selection, row, name))
        for protocol in protocols
        for seed in seeds
        for row in rows
        if stands(study.rows[row], at, protocol)
        for name in study.grid_rows(row)
    ]
    if not cells:
        raise GraceError(
            f"study '{study.name}' has no run for this choice of rows, protocols and scale"
        )
    [(name, number)] = Counter(cell.run.name for cell in cells).most_common(1)
    if number > 1:  # A point of a grid has its values' name.
        raise GraceError(f"{name} is given twice", "name it once")
    for cell in cells:
        if cell.run.expands_like and cell.seed == seeds[0]:
            # Refused now, and not when what it waits for has been made.
            _loaded(cell.run.experiment, [*cell.run.overrides, "method.expand_at=[]"])
    return cells


def _run(
    study: StudySettings,
    scale: ScaleSettings,
    protocol: str,
    seed: int,
    selection: Selection,
    row: str,
    point: str,
    *,
    plain: bool = False,
) -> RunSpec:
    """Return the run of a point of a row; plain: with the usual memory, deciding itself."""
    own, stream = study.rows[row], scale.protocols[protocol]
    other = partial(_run, study, scale, protocol, seed, selection)

    def named(point: str) -> tuple[str, str]:
        return study.points[point][0], point

    probe = (f"probe.measures=[{', '.join(own.probe)}]",) if own.probe else ()
    overrides = (
        f"method={own.method}",
        *(*scale.set, *stream.set, *study.grid_rows(row)[point], *probe),
        *(*selection.overrides, f"seed={seed}"),
    )
    is_aligned, like = own.memory == "aligned" and not plain, "" if plain else own.expands_like
    is_other = plain and (own.memory or own.expands_like)
    return RunSpec(
        f"{point} {protocol} s{seed}{' plain' if is_other else ''}",
        stream.experiment,
        overrides,
        other(row, point, plain=True) if is_aligned else None,
        other(*named(study.reference), plain=True) if is_aligned else None,
        scale.images_per_backbone if is_aligned else None,
        other(*named(like)) if like else None,
        own.grid is not None,
    )


def stands(row: RowSettings, scale: str, protocol: str) -> bool:
    """Return True if a row has a place in the table of a protocol."""
    at_scale = row.scales is None or scale in row.scales
    return at_scale and (row.protocols is None or protocol in row.protocols)


def _refuse_unknown(
    kind: str, names: Iterable[str], known: Collection[str], study: StudySettings
) -> None:
    for name in names:
        if name not in known:
            hint = did_you_mean_one_of(name, known)
            raise GraceError(f"study '{study.name}' has no {kind} '{name}'{hint}")


def _loaded(experiment: str, overrides: Sequence[str]) -> ExperimentSettings:
    """Resolve one run; settings of rows may have no effect in some of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        settings = load_experiment(experiment, overrides)
    refuse_learner_settings(settings)
    return settings


def all_runs(cells: Iterable[StudyCell]) -> list[RunSpec]:
    """List the runs of cells and those that they need, each once and after those it needs."""

    def with_needed(run: RunSpec) -> Iterator[RunSpec]:
        for needed in run.needs:
            yield from with_needed(needed)
        yield run

    return list(dict.fromkeys(run for cell in cells for run in with_needed(cell.run)))


def settings_of(run: RunSpec, found: Mapping[RunSpec, Found]) -> ExperimentSettings | None:
    """Resolve a run; ``None`` while a run that it needs is not finished.

    Args:
        run: the run.
        found: finished runs.

    Raises:
        GraceError: if a setting is wrong, or the plain run is larger than the reference.
    """
    overrides = list(run.overrides)
    if not all(needed in found for needed in run.needs):
        return None
    if run.plain and run.reference:
        plain, reference = found[run.plain].record, found[run.reference].record
        overrides.append(f"memory.size={aligned_size(plain, reference, run.images_per_backbone)}")
    if run.expands_like:
        overrides.append(f"method.expand_at={expansions(found[run.expands_like].record)}")
    settings = _loaded(run.experiment, overrides)
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


def expansions(record: RunRecord) -> list[int]:
    """Return the numbers of the tasks at which a run expanded."""
    return [task.task for task in record.tasks if task.verdict == "grow"]


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


@final
class Records:
    """Finished runs at or below some folders, by their settings.

    Warns:
        GraceWarning: if records cannot be used.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.known = set[Path]()
        """The places of all finished runs whose settings this version can read."""
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
                GraceWarning,
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
                self.known.add(place)
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


def stream_of(settings: ExperimentSettings) -> str | None:
    """Return a fingerprint that is equal for runs that differ by their threshold only.

    ``None`` if the method has no threshold, or one relative to the first saturation.
    """
    method = settings.method.without_threshold()
    if method is None:
        return None
    return settings_fingerprint(settings.model_copy(update={"method": method}))


@final
class Plan:
    """The runs of a study: which are found, left, waiting for others, or failed.

    Args:
        study: the study.
        selection: the part of it.
        folders: finished runs lie at or below them; they need not exist.
        any_version: runs count whatever versions of grace and its libraries made them.

    Raises:
        GraceError: for names that are wrong, or settings of a run that needs no other one.
    """

    def __init__(
        self,
        study: StudySettings,
        selection: Selection,
        folders: Iterable[Path] = (),
        *,
        any_version: bool = False,
    ) -> None:
        self.study, self.selection = study, selection
        self.cells = study_cells(study, selection)
        self.runs = all_runs(self.cells)
        self.records = Records(folders)
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
            found = identify(list(known.values()), self._digests)
        except (GraceError, OSError) as error:
            if not self.is_over:
                raise
            self.notes.append(
                "The images were not compared with those of the runs, which were found by "
                f"their settings: {error}"
            )
            return
        self._identities = dict(zip(known, found, strict=True))
        self._compares_images = True
        self.found.clear()
        self.update()
        if again := sum(self.state(run) == "made differently" for run in self.left):
            warnings.warn(
                f"{counted(again, 'run')} with these settings {'was' if again == 1 else 'were'} "
                "found, but made on other images or with other versions: made again",
                GraceWarning,
                stacklevel=2,
            )

    @property
    def is_over(self) -> bool:
        """True if nothing is left to make."""
        return not self.left and not self.waiting

    def identity(self, run: RunSpec) -> Mapping[str, str]:
        """Return the fingerprints of a run; its images are read unless they are known."""
        key = self._keys[run]
        if key not in self._identities:
            [self._identities[key]] = identify([self._settings[run]], self._digests)
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

    def name_missing(self) -> None:
        """Add the runs that wait for failed ones to the failures."""
        for run in self.waiting:
            needed = [need.name for need in run.needs if need not in self.found]
            self.failures[run] = f"it needs {', '.join(needed)}"

    def _resolved(self, run: RunSpec) -> ExperimentSettings | None:
        if run not in self._settings:
            settings = settings_of(run, self.found)
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
