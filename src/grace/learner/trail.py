"""The audit trail of a learner: updates and all other changes, in the order of time. Torch-free."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from grace.base.words import counted
from grace.learner.changes import Change, in_words
from grace.learner.ledger import LedgerEntry


@final
@dataclass(frozen=True, kw_only=True)
class Event:
    """One entry of the trail: an update, or another change."""

    entry: LedgerEntry | None = None
    """The update; ``None``: another change."""
    change: Change | None = None
    """The other change; ``None``: an update."""

    @property
    def date(self) -> str:
        """Date in ISO 8601; empty if an earlier grace did not note it."""
        if self.entry is not None:
            return self.entry.date
        assert self.change is not None
        return self.change.date

    @property
    def words(self) -> str:
        """What happened, with the names of the classes, in a line."""
        if self.entry is not None:
            return _update_in_words(self.entry)
        assert self.change is not None
        return in_words(self.change)


def trail(entries: Sequence[LedgerEntry], changes: Sequence[Change]) -> list[Event]:
    """Return updates and changes in the order of time; each kind keeps its own order.

    Args:
        entries: the ledger.
        changes: oldest first.
    """
    return list(_merged(entries, changes))


def _merged(entries: Sequence[LedgerEntry], changes: Sequence[Change]) -> Iterator[Event]:
    # A change of settings has an entry of its own, while its version is kept.
    rows = {entry.version for entry in entries if entry.is_set}
    waiting = [c for c in changes if c.kind != "set" or not rows & {*c.versions}]
    for entry in entries:
        while waiting and waiting[0].date < entry.date:
            yield Event(change=waiting.pop(0))
        yield Event(entry=entry)
    yield from (Event(change=change) for change in waiting)


def _update_in_words(entry: LedgerEntry) -> str:
    update = entry.update
    which = "a version that was removed" if entry.version is None else f"version {entry.version}"
    which += ", which was removed" if entry.is_removed else ""
    if entry.is_set:
        return f"set {'; '.join(map(str, entry.changed))} ({which})"
    parts = [
        f"{verb} {', '.join(names)}"
        for verb, names in (
            ("learnt", update.new_class_names),
            ("learnt again, after they were forgotten:", update.revived_class_names),
        )
        if names
    ]
    what = "; ".join(parts) or "learnt more images of known classes"
    rejected = ", rejected" if entry.status == "rejected" else ""
    return f"{what} ({counted(update.num_images, 'image')}, {which}{rejected})"
