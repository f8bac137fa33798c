"""The time of runs to come, from finished runs on the same stream."""

import pytest

from grace.settings.load import load_experiment
from grace.studies.plan import Records
from support.synthetic_records import MakeRecord


@pytest.mark.parametrize(
    ("overrides", "seconds"),
    [
        (["method=der", "seed=3"], 9.0),  # The median of 8.75, 9 and 100: one machine was loaded.
        (["method=wa"], 17.5),
        (["method=grace"], 13.25),  # No run of it: the median of all four.
        (["scenario.increment=5"], None),
        (["data.max_train_per_class=9"], None),
    ],
)
def test_runs_on_the_same_stream_tell_the_time(
    make_record: MakeRecord, overrides: list[str], seconds: float | None
) -> None:
    records = [make_record("der", 1), make_record("der", 2), make_record("der", 3)]
    records.append(make_record("wa"))
    found = Records([record.directory for record in records])
    times = dict(zip([record.directory for record in records], (8.75, 9, 100, 17.5), strict=True))
    for place, (record, settings) in found.known.items():
        each = {"seconds": record.tasks[0].seconds.model_copy(update={"total": times[place] / 5})}
        tasks = tuple(task.model_copy(update=each) for task in record.tasks)
        object.__setattr__(record, "tasks", tasks)
        found.known[place] = (record, settings)
    assert found.seconds_of(load_experiment("digits", overrides)) == seconds
