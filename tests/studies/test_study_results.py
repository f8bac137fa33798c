"""The numbers of a run that a study shows, from accuracies set by hand."""

from dataclasses import replace

from grace.runs import RunRecord
from grace.studies.study_results import METRICS
from support.synthetic_records import MakeRecord

NUMBERS = ("last", "average", "old", "new", "task_aware_last", "backbones")


def numbers(record: RunRecord) -> list[float | None]:
    return [METRICS[key].value(record) for key in NUMBERS]


def test_the_numbers_of_a_run(make_record: MakeRecord) -> None:
    made = make_record("der", task_sizes=(2, 1))
    # Four images of each class. After task 1 six of eight are right; after task 2 three of the
    # eight old ones and all new ones, and with the task told six of eight, and all four.
    first, last = made.tasks
    linear = last.classifiers["linear"]
    told = linear.task_aware
    assert told is not None
    end = {"all": 100 * 7 / 12, "old": 37.5, "new": 100.0, "per_task": (37.5, 100.0)}
    told = told.model_copy(update={"all": 100 * 10 / 12, "per_task": (75.0, 100.0)})
    tasks = (
        first.model_copy(
            update={
                "classifiers": {
                    "linear": first.classifiers["linear"].model_copy(update={"all": 75.0})
                }
            }
        ),
        last.model_copy(
            update={"classifiers": {"linear": linear.model_copy(update=end | {"task_aware": told})}}
        ),
    )
    found = numbers(replace(made, tasks=tasks))
    assert found == [100 * 7 / 12, (75 + 100 * 7 / 12) / 2, 37.5, 100.0, 100 * 10 / 12, 2]


def test_what_was_not_measured_is_unknown(make_record: MakeRecord) -> None:
    record = make_record("der", task_sizes=(2, 1), evaluated=[1])
    assert numbers(record) == [None, None, None, None, None, 2]
    without = make_record("der", 2, task_sizes=(2, 1), task_aware=False)
    assert METRICS["task_aware_last"].value(without) is None
