from dataclasses import replace

import pytest

from grace.runs import RunRecord
from grace.studies.summary import UNLIKE_MACHINES, notes_of
from support.synthetic_records import MakeRecord


def made_on(record: RunRecord, **changes: object) -> RunRecord:
    hardware = {**record.info.hardware, **changes}
    return replace(record, info=record.info.model_copy(update={"hardware": hardware}))


@pytest.mark.parametrize("other", [{"cpu": "another"}, {"gpu": "one"}, {"threads": 2}])
def test_unlike_machines_are_told_of(make_record: MakeRecord, other: dict[str, object]) -> None:
    one, two = make_record("der"), make_record("grace")
    assert notes_of([one, two]) == []
    assert notes_of([one, made_on(two, cores=64)]) == []  # They decide no rounding.
    assert notes_of([one, made_on(two, **other)]) == [UNLIKE_MACHINES]
