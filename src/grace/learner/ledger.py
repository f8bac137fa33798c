"""The capacity ledger: decision, cost and gain of every update. Torch-free."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

from grace.base.errors import GraceError
from grace.learner.changes import Change
from grace.learner.document import Document, UpdateRecord
from grace.learner.gate import lost_classes
from grace.learner.removed import by_update, key_of
from grace.learner.setting_changes import SettingChange
from grace.nn.threshold import Threshold, Verdict


@final
@dataclass(frozen=True, kw_only=True)
class LedgerEntry:
    """One update of a learner, with the version that it made."""

    update: UpdateRecord
    version: int | None
    """``None``: the update made no version, or its version was removed by an earlier grace."""
    parent: int | None
    """Number of the version that it started from; ``None``: it is the first."""
    status: Literal["accepted", "rejected"]
    is_current: bool
    """``True`` for the version in use."""
    num_classes: int
    """Number of classes known after it, forgotten classes included."""
    num_bytes: int | None
    """Size of the version; ``None``: it was removed and its size is unknown."""
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
    """The verdict of another threshold; see ``what_if``."""


def ledger(
    documents: Sequence[Document],
    current: int | None,
    initial: Threshold | None = None,
    changes: Sequence[Change] = (),
) -> list[LedgerEntry]:
    """List every update in the documents of a learner, in the order of the versions.

    Args:
        documents: all versions, ascending.
        current: number of the version in use.
        initial: another threshold to apply to the recorded saturations; ``None``: no other.
        changes: other changes of the home, which know the versions that were removed.
    """
    gone_by_update = by_update([own for change in changes for own in change.removed])
    entries: list[LedgerEntry] = []
    listed: set[UpdateRecord] = set()
    for document in documents:
        history = [update.past for update in document.history]
        would = (
            what_if(history, initial.initial, initial.decay) if initial else [None] * len(history)
        )
        num_classes = 0
        for i, update in enumerate(history):
            num_classes += len(update.new_class_names)
            is_newest = i == len(history) - 1
            # Versions share the updates of their common parents.
            if not is_newest and update in listed:
                continue
            gone = None if update in listed else gone_by_update.get(key_of(update))
            # A version of "grace set" whose parent, which learnt it, was removed.
            is_set_after = (
                gone is not None
                and bool(document.changed)
                and gone.number < document.number
                and gone.digest == document.digest
            )
            if not is_newest or is_set_after:
                entries.append(
                    LedgerEntry(
                        update=update,
                        version=gone.number if gone else None,
                        parent=gone.parent if gone else None,
                        status=gone.status if gone else "accepted",
                        is_current=False,
                        num_classes=num_classes,
                        class_names=document.class_names[:num_classes],
                        num_bytes=update.num_bytes or None,
                        is_removed=gone is not None,
                        digest=gone.digest if gone else None,
                        date=update.date,
                        would=would[i],
                    )
                )
                listed.add(update)
            if not is_newest:
                continue
            is_set = bool(document.changed) and update in listed
            listed.add(update)
            entries.append(
                LedgerEntry(
                    update=update,
                    version=document.number,
                    parent=document.parent,
                    status=document.status,
                    is_current=document.number == current,
                    num_classes=num_classes,
                    class_names=document.class_names,
                    num_bytes=document.num_bytes,
                    changed=document.changed,
                    is_set=is_set,
                    digest=document.digest,
                    date=document.created if is_set else update.date,
                    would=None if is_set else would[i],
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
    return Threshold(initial=initial, decay=decay)


def what_if(updates: Sequence[UpdateRecord], initial: float, decay: float) -> list[Verdict | None]:
    """Return the verdicts of another threshold on the recorded saturations.

    It decays after each of its own compressions and starts again after each growth. Other rules,
    such as a ceiling or a list of tasks, are ignored. After the first verdict that differs the
    network would have been another one: later verdicts are not certain.

    Args:
        updates: all updates of one learner, in order.
        initial: τ₁ in [0, 1]; a higher one compresses more often.
        decay: ρ in (0, 1]; a higher one lowers the threshold more slowly.

    Returns:
        A verdict for each update; ``None``: no saturation was recorded.

    Raises:
        GraceError: if a number is out of its range.
    """
    if not 0 <= initial <= 1:
        raise GraceError(f"threshold {initial:g} must lie between 0 and 1")
    if not 0 < decay <= 1:
        raise GraceError(f"decay {decay:g} must lie above 0 and not above 1")
    threshold = Threshold(initial=initial, decay=decay)
    verdicts: list[Verdict | None] = []
    for update in updates:
        saturation = update.outcome.saturation
        if saturation is None:
            verdicts.append(None)
            continue
        verdicts.append(threshold.verdict(saturation))
        threshold = threshold.after(threshold.verdict(saturation))
    return verdicts


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
