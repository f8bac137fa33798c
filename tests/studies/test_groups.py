import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grace.runs import DatasetRecord, RunRecord
from grace.studies.groups import group_records, spread
from grace.studies.tables import comparison_table
from support.synthetic_records import MakeRecord


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9))
def test_spread_agrees_with_numpy(values: list[float]) -> None:
    # Reference: numpy's sample standard deviation.
    found = spread(values)
    assert found.mean == pytest.approx(np.mean(values), abs=1e-6)
    assert found.deviation == pytest.approx(np.std(values, ddof=1), rel=1e-6, abs=1e-6)


def test_spread_of_one_none_and_missing() -> None:
    single = spread([3.0])
    assert (single.mean, single.deviation, single.count) == (3.0, None, 1)
    assert (spread([]), spread([1.0, None])) == (None, None)
    both = spread([80.0, 84.0])
    # (4 + 4) / (2 - 1) = 8
    assert both.deviation == pytest.approx(8**0.5)


FRESH = ["method.initialisation=random", "methods.grace.gamma=4"]


def test_seeds_and_execution_do_not_separate(make_record: MakeRecord) -> None:
    records = [
        make_record("der", 2),
        make_record("grace", 1),
        make_record("grace", 2, overrides=["engine.threads=1"]),
        make_record("grace", 1, overrides=FRESH),
        make_record("replay", 1, experiment="cifar10"),
    ]
    groups = group_records(records)
    names = [(group.experiment, group.method, len(group.records)) for group in groups]
    assert names == [
        ("cifar10", "replay", 1),
        ("digits", "grace", 2),
        ("digits", "grace", 1),
        ("digits", "der", 1),
    ]
    assert [record.seed for record in groups[1].records] == [1, 2]
    assert groups[3].label == "der"
    assert {group.variant for group in groups if group.method == "grace"} == {
        "gamma=5.0, initialisation=importance",
        "gamma=4.0, initialisation=random",
    }


def test_labels_that_are_cut_still_tell_groups_apart(make_record: MakeRecord) -> None:
    four = ["method.gamma=4", "method.threshold=0.5", "method.threshold_decay=0.9"]
    other = [*four, "method.feature_weight=3", "method.temperature=3"]
    variants = [[], [*other, "memory.size=50"], [*other, "memory.size=60"]]
    records = [make_record("grace", overrides=overrides) for overrides in variants]
    # Six settings differ. The size of memory alone tells all three apart.
    default = records[0].info.config["memory"]["size"]
    assert {group.variant for group in group_records(records)} == {
        f"memory.size={default}, …",
        "memory.size=50, …",
        "memory.size=60, …",
    }


def test_precision_separates(make_record: MakeRecord) -> None:
    records = [
        make_record("der", 1),
        make_record("der", 2, overrides=["engine.precision=bfloat16"]),
    ]
    assert {group.variant for group in group_records(records)} == {
        "engine.precision=bfloat16",
        "engine.precision=float32",
    }


def test_mean_over_complete_runs_only(make_record: MakeRecord) -> None:
    records = [make_record("der", 1), make_record("der", 2), make_record("der", 3, done=2)]
    (group,) = group_records(records)
    assert [record.seed for record in group.complete] == [1, 2]
    lasts = [record.last for record in records[:2]]
    found = group.over_runs(lambda record: record.last)
    assert found is not None
    assert found.mean == pytest.approx(statistics.mean(value for value in lasts if value))
    assert found.count == 2


def of_data(record: RunRecord, protocol: str) -> RunRecord:
    """The same run on other data, which its settings do not name; an empty protocol: unknown."""
    dataset = DatasetRecord(name="pictures", num_train=300, num_test=60, shape=(1, 8, 8))
    prints = {"protocol": protocol} if protocol else {}
    info = record.info.model_copy(update={"fingerprints": prints, "dataset": dataset})
    return replace(record, info=info)


def test_runs_of_other_data_are_told_apart(make_record: MakeRecord) -> None:
    records = [make_record("der", 1), make_record("der", 2), of_data(make_record("der", 3), "aa")]
    mixed = [*records, of_data(make_record("replay"), "aa")]
    assert [(group.label, len(group.records)) for group in group_records(mixed)] == [
        ("der (data: digits, 1437 images)", 2),
        ("der (data: pictures, 300 images)", 1),
        ("replay (data: pictures, 300 images)", 1),
    ]
    [note] = comparison_table(mixed).notes
    assert note.startswith("digits: rows of other data")
    # Images of the same name and number, and a run of which nothing is known.
    unclear = [of_data(make_record("der", n), protocol) for n, protocol in ((6, "aa"), (7, "bb"))]
    alike = [*unclear, of_data(make_record("der", 5), "")]
    assert {group.variant for group in group_records(alike)} == {
        "data: pictures, 300 images, protocol aa",
        "data: pictures, 300 images, protocol bb",
        "data: pictures, 300 images, protocol unknown",
    }


def test_other_protocols_by_settings_keep_their_labels(make_record: MakeRecord) -> None:
    records = [make_record("der", 1), make_record("der", 2, overrides=["memory.size=50"])]
    assert len({record.info.fingerprints["protocol"] for record in records}) == 2
    assert {group.variant for group in group_records(records)} == {
        "memory.size=50",
        f"memory.size={records[0].info.config['memory']['size']}",
    }
    assert comparison_table(records).notes == ()
    # A record without fingerprints stands with those of its settings.
    [group] = group_records([records[0], of_data(make_record("der", 3), "")])
    assert (group.label, len(group.records)) == ("der", 2)


def repeated(record: RunRecord, day: int, status: str = "finished") -> RunRecord:
    """A repetition of a run that ended on this day."""
    update = {"finished": f"2026-02-{day:02}T00:00:00+00:00", "status": status}
    place = record.directory.with_name(f"day-{day}")
    return replace(record, directory=place, info=record.info.model_copy(update=update))


def test_a_repetition_counts_once(make_record: MakeRecord) -> None:
    run = make_record("der", 1)
    first, again, failed = (repeated(run, 2), repeated(run, 3), repeated(run, 4, "failed"))
    table = comparison_table([again, first, failed, make_record("der", 2)])
    [row] = table.rows
    assert row.group.records[0] is again
    assert (len(row.group.complete), row.group.repetitions) == (2, (first, failed))
    assert row.group.listed == (*row.group.records, first, failed)
    [note] = table.notes
    assert "2 repetitions of the same run left out" in note
    # Two attempts that failed: the newer one is the unfinished run.
    attempts = [repeated(run, day, "failed") for day in (1, 2)]
    [group] = group_records(attempts)
    assert (group.records, group.repetitions) == ((attempts[1],), (attempts[0],))
