"""What a home says of a learner: ``model.json``, and a document of every version. Torch-free.

Every field is checked when a file is read: it may come from a stranger.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from grace.base import atomic, strict_json
from grace.base.errors import DamagedError, GraceError, NewerFormatError, first_problem
from grace.base.files import read_small
from grace.base.objects import Ref
from grace.base.strict_json import checked
from grace.data.folder_tree import class_name, spelling
from grace.engine.work import WorkDone
from grace.learner.gate import Accuracies, Limits, Ruling, Share, Strict, accepts, judge
from grace.learner.setting_changes import Line, SettingChange
from grace.methods.outcome import Outcome
from grace.settings.experiment import ExperimentSettings


@final
class Predictor(Strict):
    """The predictor that a learner answers with, and its calibration.

    A score z becomes ``(z − log π) / T``.
    """

    classifier: Annotated[str, Field(max_length=100, pattern=r"^[\w-]*$")] = ""
    """Name of one of the method's predictors; empty: its primary one."""
    prior: tuple[Annotated[int, Field(ge=0, le=1_000_000_000)], ...] = ()
    """Training images of each class in the last phase, whose shares are π; empty: no correction."""
    temperature: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    """T: higher makes probabilities more even."""
    calibration_error: tuple[Share, Share] | None = None
    """Before and after the division by T, on the held-out images; ``None``: there were too few."""

    @property
    def words(self) -> str:
        """Name it for people: "nearest mean", "linear with prior"."""
        name = self.classifier.replace("_", " ") or "the method's own"
        return f"{name} with prior" if self.prior else name


FORMAT = 1
"""The format of documents that this grace writes."""
MAX_BYTES = 1 << 25
"""The largest document that is read: some 100,000 classes."""

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=1)]
Percent = Annotated[float, Field(ge=0, le=100)]
Side = Annotated[int, Field(ge=1, le=1024)]
Shape = tuple[Annotated[int, Field(ge=1, le=3)], Side, Side]
Mean = Annotated[float, Field(ge=-1e6, le=1e6)]
StandardDeviation = Annotated[float, Field(gt=1e-6, le=1e6)]
"""A standard deviation that can be divided by."""
ScoreName = Literal["energy", "energy+mahalanobis"]
"""Scores of familiarity; see ``grace.learner.unknown``."""


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
    max_drop: Percent | None = None
    """Points of percent that old classes were allowed to lose."""
    max_class_drop: Percent | None = None
    """Points of percent that any old class was allowed to lose."""
    min_new: Percent | None = None
    """Accuracy in percent that new classes had to reach."""
    predictor: Predictor | None = None
    """The predictor chosen after it; ``None``: the method's primary one, not calibrated."""
    seconds: float = 0.0
    """Seconds of the process that finished it; without ``work``, those of all processes."""
    date: Line = ""

    @property
    def all_seconds(self) -> float:
        """Seconds that it took in all, those of interrupted processes included."""
        return self.seconds + sum(work.seconds.earlier for work in self.work)

    @property
    def limits(self) -> Limits:
        """What the update was allowed to cost."""
        return Limits(self.max_drop, self.max_class_drop, self.min_new)

    @property
    def rulings(self) -> list[Ruling]:
        """The verdict by each of its limits."""
        return judge(self.accuracy, self.limits)

    @property
    def accepted(self) -> bool:
        """``True`` if it stays within all its limits."""
        return accepts(self.accuracy, self.limits)

    @property
    def past(self) -> "UpdateRecord":
        """The record without what only the last update of a learner keeps."""
        predictor = self.predictor and self.predictor.model_copy(update={"prior": ()})
        kept = {"work": (), "seconds": self.all_seconds, "predictor": predictor}
        return self.model_copy(update=kept)


@final
class ObjectRef(Strict):
    """A reference to an object of the learner's store, by content."""

    sha256: Sha256
    bytes: int = Field(ge=0)

    @classmethod
    def of(cls, ref: Ref) -> "ObjectRef":
        """Convert a reference of the object store."""
        return cls(sha256=ref.sha256, bytes=ref.num_bytes)

    @property
    def ref(self) -> Ref:
        """The same as a reference of the object store."""
        return Ref(self.sha256, self.bytes)


@final
class Document(Strict):
    """One version of a learner."""

    format: Literal[1] = 1
    number: int = Field(ge=1)
    parent: int | None = Field(None, ge=1)
    status: Literal["accepted", "rejected"]
    digest: Sha256 | None = None
    """Digest of the images of its last update; ``None``: it was not learnt in this home."""
    created: Line
    grace_version: Line
    settings: ExperimentSettings
    changed: tuple[SettingChange, ...] = ()
    """Settings that differ from the parent's."""
    shape: Shape
    mean: tuple[Mean, ...]
    std: tuple[StandardDeviation, ...]
    class_names: tuple[str, ...]
    forgotten: tuple[int, ...] = ()
    """Indices of forgotten classes, ascending."""
    values: dict[str, Any]
    """The method's values that are not tensors."""
    parts: dict[str, ObjectRef]
    """The method's tensors."""
    original_counts: dict[int, Count] = Field(default_factory=dict)
    exemplars: dict[int, ObjectRef] = Field(default_factory=dict)
    exemplar_counts: dict[int, Count] = Field(default_factory=dict)
    """Number of images of each class in ``exemplars``."""
    validation: dict[int, ObjectRef] = Field(default_factory=dict)
    validation_counts: dict[int, Count] = Field(default_factory=dict)
    """Number of images of each class in ``validation``."""
    calibration: ObjectRef | None = None
    """Familiarities of held-out images, which set the limit for unknown images."""
    unknown_score: ScoreName = "energy"
    """The score that says how familiar an image looks."""
    history: tuple[UpdateRecord, ...]

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        num_classes = len(self.class_names)
        if not self.history or num_classes < 2:
            raise GraceError("nothing has been learnt in it")
        refuse_other_channels(self.shape, self.mean, self.std)
        for name in self.class_names:
            class_name(name)
        if len({spelling(name) for name in self.class_names}) < num_classes:
            raise GraceError("two classes have one name")
        learnt = [name for update in self.history for name in update.new_class_names]
        if tuple(learnt) != self.class_names:
            raise GraceError("the classes of its history are not its classes")
        if list(self.forgotten) != sorted(set(self.forgotten)):
            raise GraceError("its forgotten classes are not in order")
        if len({ref.sha256 for ref in self.parts.values()}) < len(self.parts):
            raise GraceError("two of its parts are one object")
        if not set(self.parts).isdisjoint(self._others):
            raise GraceError("a part has the name of something else")
        groups = (self.original_counts, self.exemplars, self.validation)
        indices = {index for group in groups for index in group} | set(self.forgotten)
        if not indices <= set(range(num_classes)):
            raise GraceError("it names a class index that does not exist")
        measured = {own.index for update in self.history for own in update.accuracy.classes}
        if not measured <= set(range(num_classes)):
            raise GraceError("its history measures a class that does not exist")
        predictor = self.history[-1].predictor
        if predictor is not None and len(predictor.prior) not in (0, num_classes):
            raise GraceError("its predictor corrects for other classes than it has")
        if not set(self.forgotten).isdisjoint({*self.exemplars, *self.validation}):
            raise GraceError("it keeps images of a forgotten class")
        counted = self.exemplars.keys() == self.exemplar_counts.keys()
        if not counted or self.validation.keys() != self.validation_counts.keys():
            raise GraceError("it counts images of other classes than it keeps images of")
        return self

    @property
    def objects(self) -> Mapping[str, ObjectRef]:
        """All objects of this version, by name."""
        return {**self.parts, **self._others}

    @property
    def _others(self) -> Mapping[str, ObjectRef]:
        """The objects of this version that are not parts of the method."""
        return {
            **{f"exemplars of class {index}": ref for index, ref in self.exemplars.items()},
            **{f"held-out images of class {i}": ref for i, ref in self.validation.items()},
            **({"calibration": self.calibration} if self.calibration else {}),
        }

    @property
    def live_class_names(self) -> Sequence[str]:
        """Names of the classes that are not forgotten, in the order of their indices."""
        hidden = set(self.forgotten)
        return [name for index, name in enumerate(self.class_names) if index not in hidden]

    def without(self, name: str) -> "Document":
        """Return this version with one class forgotten: masked, and without its images.

        The familiarities of held-out images and what their score keeps of exemplars are left out
        here, and computed again when the version is loaded.
        """
        index = self.class_names.index(name)
        groups = (
            "original_counts", "exemplars", "exemplar_counts", "validation", "validation_counts"
        )  # fmt: skip
        kept = {
            group: {i: value for i, value in getattr(self, group).items() if i != index}
            for group in groups
        }
        forgotten = tuple(sorted({*self.forgotten, index}))
        return self.model_copy(update={**kept, "forgotten": forgotten, "calibration": None})

    def dump(self) -> bytes:
        """Return the document as JSON."""
        return strict_json.dump(self.model_dump(mode="json"))

    @property
    def num_bytes(self) -> int:
        """Bytes of this version on disk: the document and all its objects, each counted once."""
        objects = {ref.sha256: ref.bytes for ref in self.objects.values()}
        return len(self.dump()) + sum(objects.values())


def refuse_other_channels(shape: Shape, mean: Sequence[float], std: Sequence[float]) -> None:
    """Refuse images that are neither grey nor colour, or constants for other channels.

    Args:
        shape: (C, H, W) of the images.
        mean: normalisation constants, one per channel.
        std: likewise.

    Raises:
        GraceError: if they do not fit together.
    """
    if shape[0] == 2 or {len(mean), len(std)} != {shape[0]}:
        raise GraceError("mean and std need one number for each of 1 or 3 channels")


def parse_document(data: bytes, what: str) -> Document:
    """Read a document from the bytes of its file.

    Args:
        data: the file's bytes.
        what: name of the file in messages.

    Raises:
        NewerFormatError: if it was written by a newer grace.
        DamagedError: if it is damaged or contradicts itself.
    """
    raw = strict_json.parse(data, what)
    if not isinstance(raw, dict):
        raise DamagedError(f"{what} is damaged: it is no document of a learner")
    check_format(raw.get("format"), FORMAT, what)
    try:
        return Document.model_validate(raw)
    except ValidationError as error:
        raise DamagedError(f"{what} is damaged: {first_problem(error)}") from error


def check_format(found: object, known: int, what: str) -> None:
    """Refuse a format that this grace does not know.

    Args:
        found: the format that the file states.
        known: the newest format that this grace reads.
        what: name of the file in messages.

    Raises:
        NewerFormatError: if it was written by a newer grace.
        DamagedError: if it names no format.
    """
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise DamagedError(f"{what} is damaged: it names no format")
    if found > known:
        raise NewerFormatError(
            f"{what} has format {found}, this grace reads up to {known}", "upgrade grace"
        )


@final
class Creation(BaseModel):
    """The settings and image shape that a learner was created with."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    format: Literal[1] = 1
    kind: Literal["grace learner"] = "grace learner"
    settings: ExperimentSettings
    shape: Shape
    mean: tuple[Mean, ...]
    std: tuple[StandardDeviation, ...]

    @model_validator(mode="after")
    def _has_a_number_for_each_channel(self) -> Self:
        refuse_other_channels(self.shape, self.mean, self.std)
        return self

    @classmethod
    def of(
        cls,
        settings: ExperimentSettings,
        shape: Sequence[int],
        mean: Sequence[float],
        std: Sequence[float],
    ) -> Self:
        """Check the settings and images of a new learner.

        Args:
            settings: the learner's settings.
            shape: (C, H, W) of its images.
            mean: normalisation constants per channel, of pixels in [0, 1].
            std: likewise.

        Raises:
            GraceError: for images larger than 1024 pixels, or unusable constants.
        """
        given = {"shape": tuple(shape), "mean": tuple(mean), "std": tuple(std)}
        try:
            return cls.model_validate({"settings": settings, **given})
        except ValidationError as error:
            raise GraceError(f"no learner can be made: {first_problem(error)}") from None


def refuse_taken(path: Path) -> None:
    """Refuse a directory that holds more than an interrupted creation leaves behind.

    A directory inside another learner is refused too.

    Raises:
        GraceError: naming what it is.
    """
    for parent in path.resolve().parents:
        # Other programs write a file of this name, too.
        if (parent / "model.json").exists() and (parent / "versions").is_dir():
            raise GraceError(f"'{path}' lies in the learner '{parent}'", "choose a place outside")
    if path.exists() and (
        not path.is_dir()
        or any(
            entry.name not in ("lock", "versions") and not atomic.is_leftover(entry)
            for entry in path.iterdir()
        )
    ):
        what = "is another learner" if (path / "model.json").exists() else "is no learner"
        raise GraceError(f"'{path}' exists already and {what}", "choose another name")


def read_creation(path: Path) -> Creation:
    """Read ``model.json`` of a learner's directory.

    Raises:
        NewerFormatError: if a newer grace made it.
        DamagedError: if it is damaged.
    """
    what = f"'{path / 'model.json'}'"
    raw = strict_json.parse(read_small(path / "model.json", what, 1 << 22), what)
    if not isinstance(raw, dict):
        raise DamagedError(f"{what} is damaged: it describes no learner")
    check_format(raw.get("format"), FORMAT, what)
    return checked(Creation, raw, what)
