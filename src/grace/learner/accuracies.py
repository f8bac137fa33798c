"""The accuracies of an update on held-out images, class by class. Torch-free.

Every field is checked when a document is read: it may come from a stranger.
"""

from typing import Annotated, Self, final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from grace.base.errors import GraceError
from grace.learner.statistics import sign_test, wilson

Share = Annotated[float, Field(ge=0, le=1)]
_Number = Annotated[int, Field(ge=0, le=10_000_000)]


class Strict(BaseModel):
    """A part of a document: frozen, with known fields and finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


@final
class ClassAccuracy(Strict):
    """Numbers of a class's held-out images that were right before and after an update."""

    index: _Number
    """Class index."""
    num: Annotated[int, Field(ge=1, le=10_000_000)]
    """Number of held-out images."""
    before: _Number | None = None
    """Right before the update; ``None``: nothing could predict the class."""
    after: _Number
    """Right after it."""
    lost: _Number = 0
    """Right before and wrong after it."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        before = self.before or 0
        kept = before - self.lost
        if max(before, self.after) > self.num or not 0 <= kept <= self.after:
            raise GraceError("the counts of a class's held-out images contradict each other")
        if self.before is not None and self.won > self.num - before:
            raise GraceError("the counts of a class's held-out images contradict each other")
        return self

    @property
    def won(self) -> int:
        """Number of images that were wrong before and are right after."""
        return 0 if self.before is None else self.after - self.before + self.lost

    @property
    def drop(self) -> float | None:
        """Accuracy that the class lost, in percentage points; ``None`` for a new class."""
        return None if self.before is None else 100 * (self.before - self.after) / self.num

    @property
    def interval_before(self) -> tuple[float, float] | None:
        """Ends of the 95 % interval of the accuracy before it; ``None`` for a new class."""
        return None if self.before is None else wilson(self.before, self.num)

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the 95 % interval of the accuracy after the update, as shares."""
        return wilson(self.after, self.num)

    @property
    def chance(self) -> float:
        """How likely chance alone loses so many images: the p-value of the paired test."""
        return sign_test(self.lost, self.won)


@final
class Accuracies(Strict):
    """Accuracy on held-out images before and after an update, as shares; ``None``: no such images.

    ``old`` are the classes known before the update, ``new`` those that it added.
    """

    old_before: Share | None = None
    old_after: Share | None = None
    new_after: Share | None = None
    num_old: int = 0
    """Number of held-out images of old classes."""
    num_new: int = 0
    """Number of held-out images of new classes."""
    teacher: Share | None = None
    """Accuracy of the expanded network on all held-out images, before compression."""
    student: Share | None = None
    """Accuracy of the compressed network on the same images."""
    classes: tuple[ClassAccuracy, ...] = ()
    """Each class with held-out images; empty in documents of an earlier grace."""

    @property
    def drop(self) -> float | None:
        """Accuracy that old classes lost, in percentage points."""
        if self.old_before is None or self.old_after is None:
            return None
        return 100 * (self.old_before - self.old_after)

    @property
    def compression_cost(self) -> float | None:
        """Accuracy that compression cost on all classes, in percentage points."""
        if self.teacher is None or self.student is None:
            return None
        return 100 * (self.teacher - self.student)

    @property
    def old_classes(self) -> list[ClassAccuracy]:
        """The classes known before the update, the largest drop first."""
        known = [own for own in self.classes if own.before is not None]
        return sorted(known, key=lambda own: (-(own.drop or 0.0), own.index))

    @property
    def new_classes(self) -> list[ClassAccuracy]:
        """The classes that the update added, the lowest accuracy first."""
        added = [own for own in self.classes if own.before is None]
        return sorted(added, key=lambda own: (own.after / own.num, own.index))
