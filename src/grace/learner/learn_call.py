"""The options and the result of a call of ``learn``. Torch-free."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from grace.learner.document import Document
from grace.learner.gate import Limits


@final
@dataclass(frozen=True, kw_only=True)
class LearnOptions:
    """Options of one update; they are not part of the learner's settings.

    Args:
        max_drop: percentage points of accuracy that the old classes may lose on their held-out
            images; an update that costs more is rejected. ``None``: no limit.
        max_class_drop: the same for every old class; the paired test must show the loss.
        min_new: accuracy in percent that the new classes must reach.
        skip_unreadable: leave unreadable images out instead of refusing them.
        skip_duplicates: leave out images that are in two places instead of refusing them.
        discard: drop an interrupted update before this one.
        again: learn images that have been learnt already.
        max_disk_mb: megabytes (10⁶ bytes) that all versions together may take afterwards; the
            oldest are removed. Fewer: fewer versions to roll back to. ``None``: all are kept.
    """

    max_drop: float | None = None
    max_class_drop: float | None = None
    min_new: float | None = None
    skip_unreadable: bool = False
    skip_duplicates: bool = False
    discard: bool = False
    again: bool = False
    max_disk_mb: float | None = None

    def __post_init__(self) -> None:
        """Refuse limits outside 0 to 100."""
        Limits(self.max_drop, self.max_class_drop, self.min_new)

    @property
    def limits(self) -> Limits:
        """What the update may cost."""
        return Limits(self.max_drop, self.max_class_drop, self.min_new)


@final
@dataclass(frozen=True, kw_only=True)
class LearnResult:
    """The version that holds the images of a call, and what the call changed.

    Args:
        model: the learner's home.
        document: the version that holds the update.
        is_new: this call made that version; otherwise it was there before.
        in_use: number of the version in use now.
        was_in_use: number of the version in use before; ``None``: the learner is new.
        class_names: classes of the given images, sorted.
        pruned: numbers of the versions that were removed for ``max_disk_mb``.
        chosen: what was chosen for a new learner, and why; empty for any other learner.
    """

    model: Path
    document: Document
    is_new: bool
    in_use: int
    was_in_use: int | None
    class_names: Sequence[str]
    pruned: Sequence[int] = ()
    chosen: Sequence[str] = ()

    @property
    def is_rejected(self) -> bool:
        """``True`` if the update was rejected and its version has not been put in use since."""
        return self.document.status == "rejected" and self.document.number > self.in_use
