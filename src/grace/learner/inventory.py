"""What a home holds and what each update brought and cost, from its documents alone. Torch-free."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, final

from grace.base.errors import GraceError
from grace.base.lock import holder
from grace.learner.document import Document, ObjectRef, UpdateRecord
from grace.learner.gate import lost_classes
from grace.learner.history import Change
from grace.learner.pruning import bytes_of
from grace.learner.setting_changes import SettingChange
from grace.learner.store import ModelStore
from grace.nn.threshold import Threshold, Verdict
from grace.settings.experiment import ExperimentSettings


@final
@dataclass(frozen=True, kw_only=True)
class ClassEntry:
    """One class of a learner."""

    index: int
    name: str
    is_forgotten: bool
    num_exemplars: int
    num_held_out: int


@final
@dataclass(frozen=True, kw_only=True)
class SavedBytes:
    """Bytes of one version by kind; an object that two kinds share counts for the first kind."""

    weights: int
    """Weights and method state."""
    exemplars: int
    held_out: int
    """Held-out images and their scores."""
    document: int

    @property
    def total(self) -> int:
        """Bytes of all kinds: the ceiling bounds this number."""
        return self.weights + self.exemplars + self.held_out + self.document


@final
@dataclass(frozen=True, kw_only=True)
class InUse:
    """The contents of the version in use."""

    document: Document
    classes: Sequence[ClassEntry]
    num_bytes: SavedBytes
    assessed: UpdateRecord | None
    """The last update that measured a saturation."""

    @classmethod
    def of(cls, document: Document) -> Self:
        """Summarise the document of a version."""
        counted: set[str] = set()
        calibration = [document.calibration] if document.calibration else []
        return cls(
            document=document,
            classes=[
                ClassEntry(
                    index=index,
                    name=name,
                    is_forgotten=index in document.forgotten,
                    num_exemplars=document.exemplar_counts.get(index, 0),
                    num_held_out=document.validation_counts.get(index, 0),
                )
                for index, name in enumerate(document.class_names)
            ],
            num_bytes=SavedBytes(
                weights=_count(document.parts.values(), counted),
                exemplars=_count(document.exemplars.values(), counted),
                held_out=_count([*document.validation.values(), *calibration], counted),
                document=len(document.dump()),
            ),
            assessed=next(
                (u for u in reversed(document.history) if u.outcome.saturation is not None), None
            ),
        )

    @property
    def last(self) -> UpdateRecord:
        """The update that made this version."""
        return self.document.history[-1]

    @property
    def created(self) -> str:
        """The date when the learner's first update ended."""
        return self.document.history[0].date


@final
@dataclass(frozen=True, kw_only=True)
class Inventory:
    """A learner's home: its versions, and the contents of the one in use."""

    path: Path
    settings: ExperimentSettings
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    versions: Sequence[int]
    rejected: Sequence[int]
    in_use: InUse | None
    """``None``: the first update is not finished."""
    damaged: Sequence[int]
    """Old versions that cannot be read."""
    is_interrupted: bool
    """``True`` if an update was interrupted."""
    running: str | None
    """Number of the process that carries out an update now; it counts as interrupted too."""
    unfinished: Change | None
    """A forget, prune, rollback or set that was interrupted."""
    changes: Sequence[Change]
    """Everything that happened, oldest first."""
    num_bytes: int
    """Bytes of all versions together; shared objects are counted once."""


def take_inventory(home: ModelStore) -> Inventory:
    """Read the documents of a home and summarise them.

    Raises:
        DamagedError: if the document of the version in use is damaged.
    """
    survey = home.survey()
    documents = {document.number: document for document in survey.documents}
    current = None if survey.current is None else documents[survey.current]
    source = home.creation if current is None else current
    is_interrupted = home.pending()
    return Inventory(
        path=home.path,
        settings=source.settings,
        shape=source.shape,
        mean=source.mean,
        std=source.std,
        versions=list(documents),
        rejected=[number for number, made in documents.items() if made.status == "rejected"],
        in_use=None if current is None else InUse.of(current),
        damaged=sorted(survey.damaged),
        is_interrupted=is_interrupted,
        # The lock is only tried beside an update: asking never gets in the way of a start.
        running=holder(home.path / "lock") if is_interrupted else None,
        unfinished=home.log.unfinished(),
        changes=home.history(),
        num_bytes=bytes_of(survey.documents),
    )


def _count(refs: Iterable[ObjectRef], counted: set[str]) -> int:
    """Return the bytes of the objects that were not counted yet; mark them as counted."""
    total = 0
    for ref in refs:
        total += 0 if ref.sha256 in counted else ref.bytes
        counted.add(ref.sha256)
    return total


@final
@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One update of a learner, with the version that it made."""

    update: UpdateRecord
    version: int | None
    """``None``: it was learnt elsewhere, before the learner came here."""
    parent: int | None
    """Number of the version that it started from; ``None``: it is the first."""
    status: Literal["accepted", "rejected"]
    is_current: bool
    """``True`` for the version in use."""
    num_classes: int
    """Number of classes known after it, forgotten classes included."""
    num_bytes: int | None
    """Size of the version when it was made; ``None``: it is not known."""
    class_names: Sequence[str] = ()
    """Names of these classes, by index."""
    changed: tuple[SettingChange, ...] = ()
    """Settings that differ from those of the version before."""
    is_set: bool = False
    """``True`` for a version of ``grace set``, which learnt nothing: ``update`` is the last one."""
    is_removed: bool = False
    """``True`` if its version was removed."""
    digest: str | None = None
    """SHA-256 of the update's images, names and limits; ``None``: it is not known."""
    date: str = ""
    """When the version, or without one the update, was finished."""
    would: Verdict | None = None
    """The verdict of another threshold on the recorded saturation.

    It decays after each of its own compressions and starts again after each growth. Other rules,
    such as a ceiling or a list of tasks, are ignored. After the first verdict that differs the
    network would have been another one: later verdicts are not certain.
    """


def ledger(
    changes: Sequence[Change],
    kept: Collection[int],
    current: int | None,
    initial: Threshold | None = None,
) -> list[LedgerEntry]:
    """List every update and every change of settings of a learner, in the order of time.

    Args:
        changes: the history.
        kept: numbers of the versions that are there.
        current: number of the version in use.
        initial: another threshold to apply to the recorded saturations; ``None``: no other.
    """
    entries: list[LedgerEntry] = []
    names: dict[int | None, tuple[str, ...]] = {}
    thresholds: dict[int | None, Threshold | None] = {}
    for change in changes:
        if (made := change.made) is None:
            continue
        update, is_set = made.update, change.kind == "set"
        own = () if is_set else update.new_class_names
        names[made.version] = (*names.get(made.parent, ()), *own)
        threshold, would = thresholds.get(made.parent, initial), None
        saturation = None if is_set else update.outcome.saturation
        if threshold is not None and saturation is not None:
            would = threshold.verdict(saturation)
            threshold = threshold.after(would)
        thresholds[made.version] = threshold
        entries.append(
            LedgerEntry(
                update=update,
                version=made.version,
                parent=made.parent,
                status=made.status,
                is_current=made.version is not None and made.version == current,
                num_classes=len(names[made.version]),
                num_bytes=made.num_bytes,
                class_names=names[made.version],
                changed=change.settings,
                is_set=is_set,
                is_removed=made.version is not None and made.version not in kept,
                digest=made.digest,
                date=change.date,
                would=would,
            )
        )
    return entries


def other_threshold(
    documents: Sequence[Document], initial: float | None, decay: float | None
) -> Threshold | None:
    """Return another threshold; a value that is not given is the learner's.

    Args:
        documents: all versions, ascending.
        initial: τ₁ in [0, 1]; ``None``: the learner's.
        decay: ρ in (0, 1]; ``None``: the learner's. If both are ``None``, so is the result.

    Raises:
        GraceError: if no saturation was recorded, or a value is missing and the learner's method
            has no threshold.
    """
    if initial is None and decay is None:
        return None
    updates = [update for document in documents for update in document.history]
    if all(update.outcome.saturation is None for update in updates):
        raise GraceError(
            "no update of this learner measured a saturation: there is nothing that another "
            "threshold could judge"
        )
    method = documents[-1].settings.method
    rule = method.threshold_rule
    if rule is not None:
        initial = rule.initial if initial is None else initial
        decay = rule.decay if decay is None else decay
    if initial is None or decay is None:
        raise GraceError(
            f"{method.name} has no threshold of its own", "give both the threshold and its decay"
        )
    if not 0 <= initial <= 1:
        raise GraceError(f"threshold {initial:g} must lie between 0 and 1")
    if not 0 < decay <= 1:
        raise GraceError(f"decay {decay:g} must lie above 0 and not above 1")
    return Threshold(initial=initial, decay=decay)


_OF_UPDATES = (
    "saturation", "threshold", "merge_weight", "compression_cost_points", "old_accuracy_before",
    "old_accuracy_after", "new_accuracy", "max_drop_points", "num_images", "seconds", "digest",
)  # fmt: skip
"""Columns that say nothing about a version of ``grace set``."""


def as_row(entry: LedgerEntry) -> dict[str, Any]:
    """Return an entry as a flat mapping: accuracies as shares, costs in percentage points."""
    update, accuracy = entry.update, entry.update.accuracy
    outcome = update.outcome
    row = {
        "version": entry.version,
        "parent": entry.parent,
        "status": entry.status,
        "in_use": entry.is_current,
        "num_new_classes": 0 if entry.is_set else len(update.new_class_names),
        "num_classes": entry.num_classes,
        "verdict": "set" if entry.is_set else outcome.verdict,
        "saturation": outcome.saturation,
        "threshold": outcome.threshold,
        "merge_weight": outcome.merge_weight,
        "backbones_before": update.num_backbones[0],
        "backbones_after": update.num_backbones[1],
        "parameters_before": update.num_parameters[0],
        "parameters_after": update.num_parameters[1],
        "compression_cost_points": accuracy.compression_cost,
        "old_accuracy_before": accuracy.old_before,
        "old_accuracy_after": accuracy.old_after,
        "new_accuracy": accuracy.new_after,
        "num_held_out_old": accuracy.num_old,
        "num_held_out_new": accuracy.num_new,
        "num_lost_classes": len(lost_classes(accuracy)),
        "max_drop_points": update.max_drop,
        "max_class_drop_points": update.max_class_drop,
        "min_new_points": update.min_new,
        "predictor": update.predictor.words if update.predictor else None,
        "num_images": update.num_images,
        "num_exemplars": update.num_exemplars,
        "num_bytes": entry.num_bytes,
        "seconds": update.seconds,
        "date": entry.date,
        "changed_settings": "; ".join(map(str, entry.changed)),
        "removed": entry.is_removed,
        "digest": entry.digest,
    }
    if entry.is_set:
        row |= dict.fromkeys(_OF_UPDATES)
    return row
