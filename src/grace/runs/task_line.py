"""Make a task's line of the record: its accuracies, decisions, sizes and costs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from grace.runs import metrics
from grace.runs.model import (
    BytesRecord,
    ClassifierRecord,
    ParameterRecord,
    PhaseRecord,
    SecondsRecord,
    TaskAwareRecord,
    TaskRecord,
)

# torch is imported where scores are compared, so that what only reads records is quick.
if TYPE_CHECKING:
    from torch import Tensor

    from grace.learner.document import UpdateRecord
    from grace.learner.learner import Learner


@final
@dataclass(frozen=True)
class Tested:
    """The result of a test on all seen classes."""

    classifiers: dict[str, ClassifierRecord]
    """Accuracies of each predictor, the primary one first."""
    confusion: tuple[tuple[int, ...], ...] | None
    """Test images of each class (row) by predicted class (column), of the primary predictor."""


def compare_predictions(
    scores: "Mapping[str, Tensor]", labels: "Tensor", task_sizes: Sequence[int]
) -> Tested:
    """Measure every predictor on test images of all seen classes.

    The task-aware accuracy, for which the task of each image is given, uses the same scores.

    Args:
        scores: (N, K) by predictor, the primary one first.
        labels: true class indices, int64 (N,).
        task_sizes: number of new classes of each seen task; they sum to K.
    """
    from grace.runs.task_aware import task_aware_predictions

    true, num_old = labels.tolist(), sum(task_sizes[:-1])

    def confusion(predictions: "Tensor") -> list[list[int]]:
        return metrics.confusion_matrix(true, predictions.tolist(), sum(task_sizes))

    classifiers: dict[str, ClassifierRecord] = {}
    primary: tuple[tuple[int, ...], ...] | None = None
    for name, values in scores.items():
        found = confusion(values.argmax(dim=1))
        task_aware = confusion(task_aware_predictions(values, labels, task_sizes))
        old, new = metrics.old_new_accuracy(found, num_old)
        classifiers[name] = ClassifierRecord(
            all=metrics.overall_accuracy(found),
            old=old,
            new=new,
            per_task=tuple(metrics.per_task_accuracy(found, task_sizes)),
            task_aware=TaskAwareRecord(
                all=metrics.overall_accuracy(task_aware),
                per_task=tuple(metrics.per_task_accuracy(task_aware, task_sizes)),
            ),
        )
        primary = primary or tuple(tuple(row) for row in found)
    return Tested(classifiers, primary)


def task_record(
    learner: "Learner",
    update: "UpdateRecord",
    task_sizes: Sequence[int],
    tested: Tested,
    evaluate_seconds: float,
) -> TaskRecord:
    """Return the line of one task after its update and test.

    Args:
        learner: the learner after the update.
        update: the record of the update.
        task_sizes: number of new classes of each seen task.
        tested: the result of the test.
        evaluate_seconds: duration of the test.
    """
    size, memory, outcome = learner.size(), learner.method.memory, update.outcome
    return TaskRecord(
        task=update.task,
        num_new=len(update.new_class_names),
        num_seen=sum(task_sizes),
        class_names_new=update.new_class_names,
        classifiers=tested.classifiers,
        primary=next(iter(tested.classifiers), None),
        confusion=tested.confusion,
        saturation=outcome.saturation,
        threshold=outcome.threshold,
        verdict=outcome.verdict,
        merge_weight=outcome.merge_weight,
        reason=outcome.reason,
        measures=dict(outcome.measures),
        backbones=size.num_backbones,
        parameters=ParameterRecord(
            backbones=size.backbone_parameters,
            heads=size.head_parameters,
            total=size.num_parameters,
        ),
        bytes=BytesRecord(weights=size.weight_bytes, exemplars=memory.num_bytes),
        num_exemplars=len(memory),
        phases=tuple(
            PhaseRecord(
                name=work.name,
                epochs=work.epochs,
                images=work.images,
                seconds=work.seconds.total,
                earlier=work.seconds.earlier,
                is_shared=work.is_shared,
                sha256=work.sha256,
                losses=dict(work.losses),
            )
            for work in update.work
        ),
        seconds=SecondsRecord(
            learn=update.all_seconds,
            evaluate=evaluate_seconds,
            total=update.all_seconds + evaluate_seconds,
        ),
    )
