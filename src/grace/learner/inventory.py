"""The inventory of a saved learner, from its documents alone. Torch-free."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from grace.base.lock import holder
from grace.learner.document import Document, ObjectRef, UpdateRecord
from grace.learner.history import Change
from grace.learner.pruning import bytes_of
from grace.learner.store import ModelStore
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
    def of(cls, document: Document) -> "InUse":
        """Summarise the document of a version."""
        return _in_use(document)

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
        in_use=None if current is None else _in_use(current),
        damaged=sorted(survey.damaged),
        is_interrupted=is_interrupted,
        # The lock is only tried beside an update: asking never gets in the way of a start.
        running=holder(home.path / "lock") if is_interrupted else None,
        unfinished=home.log.unfinished(),
        changes=home.history(),
        num_bytes=bytes_of(survey.documents),
    )


def _in_use(document: Document) -> InUse:
    counted: set[str] = set()
    calibration = [document.calibration] if document.calibration else []
    return InUse(
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


def _count(refs: Iterable[ObjectRef], counted: set[str]) -> int:
    """Return the bytes of the objects that were not counted yet; mark them as counted."""
    total = 0
    for ref in refs:
        total += 0 if ref.sha256 in counted else ref.bytes
        counted.add(ref.sha256)
    return total
