"""What is written about a learner: ``model.json``, and a document of every version. Torch-free.

Every field is checked when a file is read: it may come from a stranger.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeVar, final

from pydantic import Field, ValidationError, model_validator

from grace.base import strict_json
from grace.base.atomic import Ref
from grace.base.errors import DamagedError, GraceError, NewerFormatError, first_problem
from grace.base.strict_json import checked
from grace.data.folder_tree import class_name, spelling
from grace.engine.work import WorkDone
from grace.learner.gate import Accuracies, Ruling, Share, Strict, accepts, judge
from grace.learner.setting_changes import Line, SettingChange
from grace.methods.outcome import Outcome
from grace.settings.experiment import ExperimentSettings, GateSettings

FORMAT = 1
"""The format of documents that this grace writes."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=1)]
Side = Annotated[int, Field(ge=1, le=1024)]
Shape = tuple[Annotated[int, Field(ge=1, le=3)], Side, Side]
Mean = Annotated[float, Field(ge=-1e6, le=1e6)]
StandardDeviation = Annotated[float, Field(gt=1e-6, le=1e6)]
"""A standard deviation that can be divided by."""


@final
class UpdateRecord(Strict):
    """The record of one update: the method's outcome, its work, sizes and accuracies."""

    task: int = Field(ge=1)
    new_class_names: tuple[str, ...]
    revived_class_names: tuple[str, ...] = ()
    outcome: Outcome
    work: tuple[WorkDone, ...] = ()
    """Saved for the last update of a learner only."""
    num_images: int = 0
    """Number of training images, exemplars not counted."""
    num_backbones: tuple[int, int] = (0, 0)
    """Before and after."""
    num_parameters: tuple[int, int] = (0, 0)
    """Before and after."""
    num_bytes: int = 0
    """Bytes of the version that it made: weights, method state, all images; not its document."""
    num_exemplars: int = 0
    accuracy: Accuracies = Accuracies()
    gate: GateSettings = GateSettings()
    """What it was allowed to cost."""
    temperature: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    """Divides the scores: higher makes probabilities more even."""
    calibration_error: tuple[Share, Share] | None = None
    """Before and after the division, on the held-out images; ``None``: there were too few."""
    seconds: float = 0.0
    """Seconds of the process that finished it; without ``work``, those of all processes."""
    date: Line = ""

    @property
    def all_seconds(self) -> float:
        """Seconds that it took in all, those of interrupted processes included."""
        return self.seconds + sum(work.seconds.earlier for work in self.work)

    @property
    def rulings(self) -> list[Ruling]:
        """The verdict by each of its limits."""
        return judge(self.accuracy, self.gate)

    @property
    def accepted(self) -> bool:
        """``True`` if it stays within all its limits."""
        return accepts(self.accuracy, self.gate)

    @property
    def past(self) -> "UpdateRecord":
        """The record without what only the last update of a learner keeps."""
        return self.model_copy(update={"work": (), "seconds": self.all_seconds})


@final
class ImagesRef(Ref):
    """A reference to an object that holds images of one class."""

    num: Count
    """Number of images."""


class _Origin(Strict):
    """The settings of a learner, and the images that it takes."""

    format: Literal[1] = 1
    settings: ExperimentSettings
    shape: Shape
    """(C, H, W) of every image."""
    mean: tuple[Mean, ...]
    """Normalisation constants per channel, of pixels in [0, 1]."""
    std: tuple[StandardDeviation, ...]

    @model_validator(mode="after")
    def _has_a_number_for_each_channel(self) -> Self:
        if self.shape[0] == 2 or {len(self.mean), len(self.std)} != {self.shape[0]}:
            raise GraceError("mean and std need one number for each of 1 or 3 channels")
        return self


@final
class Creation(_Origin):
    """What a learner was created with."""

    kind: Literal["grace learner"] = "grace learner"

    @classmethod
    def of(
        cls,
        settings: ExperimentSettings,
        shape: Sequence[int],
        mean: Sequence[float],
        std: Sequence[float],
    ) -> Self:
        """Check the settings and images of a new learner; arguments are the fields.

        Raises:
            GraceError: for images larger than 1024 pixels, or unusable constants.
        """
        try:
            return cls(
                settings=portable(settings), shape=tuple(shape), mean=tuple(mean), std=tuple(std)
            )
        except ValidationError as error:
            raise GraceError(f"no learner can be made: {first_problem(error)}") from None


def portable(settings: ExperimentSettings) -> ExperimentSettings:
    """Return settings without this machine's data folder."""
    data = settings.data.model_copy(update={"root": None})
    return settings.model_copy(update={"data": data})


@final
class Document(_Origin):
    """One version of a learner."""

    number: int = Field(ge=1)
    parent: int | None = Field(None, ge=1)
    status: Literal["accepted", "rejected"]
    digest: Sha256 | None = None
    """Digest of the images of its last update; ``None``: it was not learnt in this home."""
    created: Line
    grace_version: Line
    changed: tuple[SettingChange, ...] = ()
    """Settings that differ from the parent's."""
    forgotten: tuple[int, ...] = ()
    """Indices of forgotten classes."""
    values: dict[str, Any]
    """The method's values that are not tensors."""
    parts: dict[str, Ref]
    """The method's tensors."""
    original_counts: dict[int, Count] = Field(default_factory=dict)
    """Number of images that each class was learnt from."""
    exemplars: dict[int, ImagesRef] = Field(default_factory=dict)
    validation: dict[int, ImagesRef] = Field(default_factory=dict)
    """Held-out images of each class."""
    calibration: Ref | None = None
    """Familiarities of held-out images, which set the limit for unknown images."""
    history: tuple[UpdateRecord, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for name in self.class_names:
            class_name(name)
        known, history = range(len(self.class_names)), self.history
        if len(set(map(spelling, self.class_names))) < max(2, len(known)):
            raise GraceError("it has fewer than two classes, or two of one name")
        measured = (own.index for update in history for own in update.accuracy.classes)
        kept = (*self.original_counts, *self.exemplars, *self.validation)
        if not {*kept, *self.forgotten, *measured} <= {*known}:
            raise GraceError("it names a class index that does not exist")
        if len({ref.sha256 for ref in self.parts.values()}) < len(self.parts):
            raise GraceError("two of its parts are one object")
        return self

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """Names of all classes by index, forgotten classes included."""
        return tuple(name for update in self.history for name in update.new_class_names)

    @property
    def live_class_names(self) -> list[str]:
        """Names of the classes that are not forgotten, in the order of their indices."""
        hidden = set(self.forgotten)
        return [name for index, name in enumerate(self.class_names) if index not in hidden]

    def without(self, name: str) -> "Document":
        """Return this version with one class forgotten: masked, and without its images.

        The familiarities of held-out images and what their score keeps of exemplars are left out
        here, and computed again when the version is loaded.
        """
        index = self.class_names.index(name)
        changed: dict[str, Any] = {
            group: {i: own for i, own in getattr(self, group).items() if i != index}
            for group in ("original_counts", "exemplars", "validation")
        }
        forgotten = tuple(sorted({*self.forgotten, index}))
        return self.model_copy(update={**changed, "forgotten": forgotten, "calibration": None})

    def dump(self) -> bytes:
        """Return the document as JSON."""
        return strict_json.dump(self.model_dump(mode="json"))

    @property
    def num_bytes(self) -> int:
        """Bytes of this version on disk: the document and all its objects, each counted once."""
        return sum(self.bytes_by_kind.values())

    @property
    def bytes_by_kind(self) -> Mapping[str, int]:
        """Bytes by kind; an object that two kinds share counts for the first one."""
        sizes, counted = {}, set[str]()
        for kind, refs in self._refs.items():
            own = {ref.sha256: ref.bytes for ref in refs if ref.sha256 not in counted}
            sizes[kind] = sum(own.values())
            counted |= own.keys()
        return {**sizes, "document": len(self.dump())}

    @property
    def refs(self) -> list[Ref]:
        """References to all objects of this version."""
        return [ref for refs in self._refs.values() for ref in refs]

    @property
    def _refs(self) -> Mapping[str, Sequence[Ref]]:
        scores = [self.calibration] if self.calibration else []
        return {
            "weights_and_method_state": [*self.parts.values()],
            "exemplars": [*self.exemplars.values()],
            "held_out_images": [*self.validation.values(), *scores],
        }


OriginT = TypeVar("OriginT", Creation, Document)


def parse(model: type[OriginT], data: bytes, what: str) -> OriginT:
    """Read a document, or ``model.json``, from the bytes of its file.

    Args:
        model: ``Document`` or ``Creation``.
        data: the file's bytes.
        what: name of the file in messages.

    Raises:
        NewerFormatError: if it was written by a newer grace.
        DamagedError: if it is damaged.
    """
    raw = strict_json.parse(data, what)
    found = raw.get("format") if isinstance(raw, dict) else None
    if type(found) is not int or found < 1:
        raise DamagedError(f"{what} is damaged: it names no format")
    if found > FORMAT:
        raise NewerFormatError(
            f"{what} has format {found}, this grace reads up to {FORMAT}", "upgrade grace"
        )
    return checked(model, raw, what)


@contextmanager
def remedied(remedy: str) -> Iterator[None]:
    """Say what to do about a damaged file."""
    try:
        yield
    except DamagedError as error:
        raise DamagedError(error.what, remedy) from error.__cause__
