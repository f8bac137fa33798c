"""What a home still knows of a version that was removed: the facts of its last update. Torch-free.

They stand in the note on the ``prune`` that removed it, and are bounded: a note holds the newest
versions alone if it removes very many, and their class names while they fit.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal, Self, final

from pydantic import BaseModel, ConfigDict, Field

from grace.base import strict_json
from grace.learner.document import Document, Sha256, UpdateRecord
from grace.learner.setting_changes import Line

MAX_VERSIONS = 1000
"""The number of versions that one note describes; the newest are chosen."""
MAX_NAME_BYTES = 1 << 19
"""Bytes of the class names in one note; those of older versions are left out first."""

Key = tuple[int, str, int, int]
_Number = Annotated[int, Field(ge=1)]


@final
class RemovedVersion(BaseModel):
    """One removed version, and the update that made it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: _Number
    parent: _Number | None = None
    status: Literal["accepted", "rejected"]
    digest: Sha256 | None = None
    """As in ``Document.digest``."""
    task: _Number
    """Number of its last update."""
    date: Line = ""
    """Date of that update."""
    num_images: int = 0
    num_new_classes: int = Field(0, ge=0)
    new_class_names: tuple[str, ...] = ()
    """Empty if the names of all removed versions were too long together."""
    revived_class_names: tuple[str, ...] = ()
    """Likewise."""

    @classmethod
    def of(cls, document: Document) -> Self:
        """Note the facts of a version."""
        update = document.history[-1]
        return cls(
            number=document.number,
            parent=document.parent,
            status=document.status,
            digest=document.digest,
            task=update.task,
            date=update.date,
            num_images=update.num_images,
            num_new_classes=len(update.new_class_names),
            new_class_names=update.new_class_names,
            revived_class_names=update.revived_class_names,
        )

    @property
    def in_words(self) -> str:
        """Its number, with the classes that its update learnt: "4 (cat, dog; rejected)"."""
        names = ", ".join([*self.new_class_names, *self.revived_class_names])
        notes = "; ".join([names] * bool(names) + ["rejected"] * (self.status == "rejected"))
        return f"{self.number} ({notes})" if notes else str(self.number)

    @property
    def key(self) -> Key:
        """What tells its update from others; the same as ``key_of`` of the update's record."""
        return (self.task, self.date, self.num_images, self.num_new_classes)


def key_of(update: UpdateRecord) -> Key:
    """Return what tells an update from others, as far as a removed version's facts know it."""
    return (update.task, update.date, update.num_images, len(update.new_class_names))


def facts_of(documents: Iterable[Document]) -> tuple[RemovedVersion, ...]:
    """Note the facts of versions that are about to be removed, within the bounds of a note.

    Args:
        documents: the versions, ascending.
    """
    facts, room = [], MAX_NAME_BYTES
    for document in list(documents)[: -MAX_VERSIONS - 1 : -1]:
        own = RemovedVersion.of(document)
        room -= len(strict_json.dump([*own.new_class_names, *own.revived_class_names]))
        if room < 0:
            own = own.model_copy(update={"new_class_names": (), "revived_class_names": ()})
        facts.append(own)
    return tuple(reversed(facts))


def by_update(removed: Sequence[RemovedVersion]) -> Mapping[Key, RemovedVersion]:
    """Return for each update the removed version that it made.

    A version of ``grace set`` has the update of the one before it, which comes first; an update
    that was rejected and repeated within a second is the accepted one.
    """
    found: dict[Key, RemovedVersion] = {}
    for own in sorted(removed, key=lambda own: (own.status == "rejected", own.number)):
        found.setdefault(own.key, own)
    return found
