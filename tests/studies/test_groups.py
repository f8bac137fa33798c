"""Groups of runs and their labels."""

import statistics
from dataclasses import replace

import pytest

from grace.runs.model import DatasetRecord, RunRecord
from grace.studies.frame import group_records
from grace.studies.table import comparison_numbers, comparison_table
from support.synthetic_records import MakeRecord

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
        ("digits", "der", 1),
        ("digits", "grace", 2),
        ("digits", "grace", 1),
    ]
    assert [record.seed for record in groups[2].records] == [1, 2]
    assert groups[1].label == "der"
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
    numbers = comparison_numbers([group])
    assert numbers.at[0, "last_mean"] == pytest.approx(statistics.mean(v for v in lasts if v))
    assert numbers.at[0, "runs"] == 2


def of_data(record: RunRecord, protocol: str) -> RunRecord:
    """The same run on other data, which its settings do not name; an empty protocol: unknown."""
    dataset = DatasetRecord(name="pictures", num_train=300, num_test=60, shape=(1, 8, 8))
    prints = {"protocol": protocol} if protocol else {}
    info = record.info.model_copy(update={"fingerprints": prints, "dataset": dataset})
    return replace(record, info=info)


def test_runs_of_other_data_are_told_apart(make_record: MakeRecord) -> None:
    records = [make_record("der", 1), make_record("der", 2), of_data(make_record("der", 3), "aa")]
    mixed = [*records, of_data(make_record("replay"), "aa")]
    own = records[0].info.fingerprints["protocol"][:8]
    found = [(group.label, len(group.records)) for group in group_records(mixed)]
    assert sorted(found) == [
        (f"der (data: digits, 1437 images, protocol {own})", 2),
        ("der (data: pictures, 300 images, protocol aa)", 1),
        ("replay", 1),
    ]
    [note] = comparison_table(group_records(mixed)).notes
    assert note.startswith("digits: rows of other data")


def test_other_protocols_by_settings_keep_their_labels(make_record: MakeRecord) -> None:
    records = [make_record("der", 1), make_record("der", 2, overrides=["memory.size=50"])]
    assert len({record.info.fingerprints["protocol"] for record in records}) == 2
    assert {group.variant for group in group_records(records)} == {
        "memory.size=50",
        f"memory.size={records[0].info.config['memory']['size']}",
    }
    assert comparison_table(group_records(records)).notes == ()


def repeated(record: RunRecord, day: int, status: str = "finished") -> RunRecord:
    """A repetition of a run that ended on this day."""
    update = {"finished": f"2026-02-{day:02}T00:00:00+00:00", "status": status}
    place = record.directory.with_name(f"day-{day}")
    return replace(record, directory=place, info=record.info.model_copy(update=update))


def test_a_repetition_counts_once(make_record: MakeRecord) -> None:
    run = make_record("der", 1)
    first, again, failed = (repeated(run, 2), repeated(run, 3), repeated(run, 4, "failed"))
    [group] = group_records([again, first, failed, make_record("der", 2)])
    assert group.records[0] is again
    assert len(group.complete) == 2
    [note] = group.notes
    assert "2 repetitions of the same run left out" in note
    # Two attempts that failed: the newer one is the unfinished run.
    attempts = [repeated(run, day, "failed") for day in (1, 2)]
    [group] = group_records(attempts)
    assert group.records == (attempts[1],)
