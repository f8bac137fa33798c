"""The data types of a record. Accuracies in percent, sizes in bytes, times in seconds."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, final

from pydantic import AfterValidator, BaseModel, ConfigDict, FailFast, Field, model_validator
from typing_extensions import TypeAliasType

from grace.base.errors import GraceError
from grace.methods.outcome import MethodVerdict
from grace.runs import metrics

# The limits keep sums, means and deviations of a stranger's numbers finite.
Count = Annotated[int, Field(ge=0, le=10**15)]
Percent = Annotated[float, Field(ge=0, le=100)]
Number = Annotated[float, Field(ge=-1e15, le=1e15)]
Seconds = Annotated[float, Field(ge=0, le=1e15)]
# At the first wrong item: an error for each of millions would take tens of times their bytes.
Names = Annotated[tuple[str, ...], FailFast()]
PerTask = Annotated[tuple[Percent | None, ...], FailFast()]
Row = Annotated[tuple[Count, ...], FailFast()]
Matrix = TypeAliasType("Matrix", Annotated[tuple[Row, ...], FailFast()])
Fingerprint = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 in hexadecimal digits, which names folders."""


def as_time(text: str) -> datetime:
    """Read a date and time in ISO format; without a time zone it is UTC."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


Time = Annotated[str, AfterValidator(lambda text: as_time(text) and text)]
"""A date and time in ISO format."""


class _Frozen(BaseModel):
    """A frozen model; unknown keys are ignored, so that later formats can add some."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


@final
class TaskAwareRecord(_Frozen):
    """Accuracies (%) of one classifier that knows the task of each image.

    It chooses among the classes of that task only: 100 by construction if the task has one class.
    """

    all: Percent
    per_task: PerTask


@final
class ClassifierRecord(_Frozen):
    """Accuracies (%) of one classifier after one task, against all seen classes."""

    all: Percent
    old: Percent | None = None
    new: Percent | None = None
    per_task: PerTask
    task_aware: TaskAwareRecord | None = None
    """``None`` in records from before it was measured."""


@final
class PhaseRecord(_Frozen):
    """One finished phase; the losses are means over its last epoch."""

    name: str
    epochs: Count
    images: Count
    seconds: Seconds
    earlier: Seconds = 0.0
    """The part of ``seconds`` that another process spent."""
    is_shared: bool = False
    """``True`` if that process belonged to another run."""
    sha256: str = ""
    """Hash of the weights that it ended with, if runs share them; empty otherwise."""
    losses: dict[str, float] = {}


@final
class ParameterRecord(_Frozen):
    """Numbers of parameters kept after a task."""

    backbones: Count
    heads: Count
    total: Count


@final
class BytesRecord(_Frozen):
    """Sizes after a task, in bytes."""

    weights: Count
    exemplars: Count


@final
class SecondsRecord(_Frozen):
    """Wall-clock seconds of a task."""

    learn: Seconds
    evaluate: Seconds
    total: Seconds


@final
class TaskRecord(_Frozen):
    """One line of ``tasks.jsonl``."""

    task: int = Field(ge=1)
    num_new: Count
    num_seen: Count
    class_names_new: Names = ()
    classifiers: dict[str, ClassifierRecord] = {}
    primary: str | None = None
    confusion: Matrix | None = None
    """Test images by true class (row) and predicted class, K×K."""
    saturation: Number | None = None
    threshold: Number | None = None
    verdict: MethodVerdict | None = None
    merge_weight: Number | None = None
    reason: str = ""
    """The reason of the decision in words, if the method states more than its numbers."""
    measures: dict[str, Number] = {}
    """Measures of the last backbone's saturation by name, if the run took any."""
    backbones: Count
    parameters: ParameterRecord
    bytes: BytesRecord
    num_exemplars: Count = 0
    phases: Annotated[tuple[PhaseRecord, ...], FailFast()] = ()
    seconds: SecondsRecord

    @model_validator(mode="after")
    def _shapes_agree(self) -> Self:
        if any(len(row) != len(self.confusion or ()) for row in self.confusion or ()):
            raise GraceError("the confusion matrix is not square")
        for name, entry in self.classifiers.items():
            for found in (entry, entry.task_aware):
                if found is not None and len(found.per_task) != self.task:
                    raise GraceError(
                        f"classifier {name!r} has {len(found.per_task)} per-task accuracies after "
                        f"task {self.task}"
                    )
        return self

    @property
    def accuracy(self) -> ClassifierRecord | None:
        """The primary classifier's accuracies; ``None``: the task was not evaluated."""
        return self.classifiers.get(self.primary) if self.primary else None


@final
class DatasetRecord(_Frozen):
    """The images of a run; the shape is (C, H, W)."""

    name: str
    num_train: Count
    num_test: Count
    shape: tuple[Count, Count, Count]


@final
class RunInfo(_Frozen):
    """``run.json``: everything about a run that is not about one task."""

    format: int = 1
    experiment: str
    description: str = ""
    status: Literal["running", "finished", "failed"] = "running"
    error: str | None = None
    config: dict[str, Any]
    """The settings as they were saved; another version of grace may not know all of them."""
    versions: dict[str, str] = {}
    commit: str | None = None
    hardware: dict[str, Any] = {}
    fingerprints: dict[str, Fingerprint] = {}
    started: Time
    finished: Time | None = None
    class_names: Names = ()
    task_sizes: Row = ()
    notes: Names = ()
    dataset: DatasetRecord | None = None

    def section(self, name: str) -> Mapping[str, object]:
        """Return a section of the settings; empty if the record has no such section."""
        section = self.config.get(name)
        return section if isinstance(section, dict) else {}


@final
@dataclass(frozen=True)
class RunRecord:
    """One run as read from its directory."""

    directory: Path
    info: RunInfo
    tasks: tuple[TaskRecord, ...]

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.info.section("method").get("name") or "unknown")

    @property
    def seed(self) -> int | None:
        """The seed of the initialisation, which names the run; ``seed=N`` sets it."""
        seed = self.info.section("seeds").get("initialisation")
        return seed if isinstance(seed, int) else None

    @property
    def complete(self) -> bool:
        """``True`` if the run finished all its tasks."""
        return self.info.status == "finished" and 0 < len(self.tasks) == len(self.info.task_sizes)

    def accuracies(self, *, task_aware: bool = False) -> list[float | None]:
        """Return the primary classifier's A_t (%) per task; ``None``: not tested."""
        found = [task.accuracy for task in self.tasks]
        told = [entry.task_aware if entry and task_aware else entry for entry in found]
        return [entry.all if entry else None for entry in told]

    @cached_property
    def matrix(self) -> metrics.Matrix:
        """R[t, i] (%) of the primary classifier, on true task boundaries."""
        found = [task.accuracy for task in self.tasks]
        return metrics.accuracy_matrix([entry.per_task if entry else None for entry in found])

    @property
    def last(self) -> float | None:
        """A_T (%)."""
        return next(reversed(self.accuracies()), None)

    @property
    def average(self) -> float | None:
        """Mean of A_1..A_T (%)."""
        return metrics.average(self.accuracies())

    @property
    def forgetting(self) -> float | None:
        """Mean drop of a task's accuracy from its best (percentage points)."""
        return metrics.forgetting(self.matrix)

    @property
    def backward_transfer(self) -> float | None:
        """Mean change of a task's accuracy since it was learnt (percentage points)."""
        return metrics.backward_transfer(self.matrix)

    @property
    def task_aware_last(self) -> float | None:
        """Task-aware accuracy after the last task (%)."""
        return next(reversed(self.accuracies(task_aware=True)), None)

    @property
    def seconds(self) -> float:
        """Seconds of all tasks together."""
        return sum(task.seconds.total for task in self.tasks)
