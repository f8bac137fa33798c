"""Any records as a study: which runs make a row, how rows are named, which run counts."""

from collections.abc import Sequence
from dataclasses import replace

from grace.runs.model import DatasetRecord, RunRecord
from grace.studies.results import compared
from grace.studies.table import numbers_csv
from support.synthetic_records import MakeRecord

FRESH = ["method.initialisation=random", "methods.grace.gamma=4"]


def rows_of(records: Sequence[RunRecord]) -> list[tuple[str, str, int]]:
    """Experiment, label and number of runs of every row."""
    result = compared(records)
    places = dict.fromkeys((cell.protocol, cell.row) for cell in result.cells)
    return [(protocol, row, len(result.runs(row, protocol))) for protocol, row in places]


def test_seeds_and_execution_do_not_separate(make_record: MakeRecord) -> None:
    records = [
        make_record("der", 2),
        make_record("grace", 1),
        make_record("grace", 2, overrides=["engine.threads=1"]),
        make_record("grace", 1, overrides=FRESH),
        make_record("replay", 1, experiment="cifar10"),
    ]
    assert sorted(rows_of(records)) == [
        ("cifar10", "replay", 1),
        ("digits", "der", 1),
        ("digits", "grace (gamma=4.0, initialisation=random)", 1),
        ("digits", "grace (gamma=5.0, initialisation=importance)", 2),
    ]
    result = compared(records)
    assert result.rows[1] == "der"  # In the registry's order of methods.
    assert [one.record.seed for one in result.runs(result.rows[2], "digits")] in ([1, 2], [1])


def test_settings_that_differ_name_a_row(make_record: MakeRecord) -> None:
    changes = ["engine.precision=bfloat16", "memory.size=50", "data.classes=['=a', 'b']"]
    plain = make_record("der", 1)
    for change in changes:  # Another protocol by its settings: the images need not be named.
        result = compared([plain, make_record("der", 2, overrides=[change])])
        assert f"der ({change})" in result.rows
        assert len(result.rows) == 2
        assert result.notes == []
    assert "der (data.classes=none)" in result.rows


def of_data(record: RunRecord, protocol: str) -> RunRecord:
    """The same run on other data, which its settings do not name; an empty protocol: unknown."""
    dataset = DatasetRecord(name="pictures", num_train=300, num_test=60, shape=(1, 8, 8))
    prints = {"protocol": protocol} if protocol else {}
    info = record.info.model_copy(update={"fingerprints": prints, "dataset": dataset})
    return replace(record, info=info)


def test_runs_of_other_data_are_told_apart(make_record: MakeRecord) -> None:
    records = [make_record("der", 1), make_record("der", 2), of_data(make_record("der", 3), "aa")]
    mixed = [*records, of_data(make_record("replay"), "")]
    own = records[0].info.fingerprints["protocol"][:8]
    assert sorted(rows_of(mixed)) == [
        ("digits", f"der (data: digits, 1437 images, protocol {own})", 2),
        ("digits", "der (data: pictures, 300 images, protocol aa)", 1),
        ("digits", "replay", 1),
    ]
    [note] = compared(mixed).notes
    assert note.startswith("digits: der ran on other data")


def repeated(record: RunRecord, day: int, status: str = "finished") -> RunRecord:
    """A repetition of a run that ended on this day."""
    update = {"finished": f"2026-02-{day:02}T00:00:00+00:00", "status": status}
    place = record.directory.with_name(f"day-{day}")
    return replace(record, directory=place, info=record.info.model_copy(update=update))


def test_a_repetition_counts_once(make_record: MakeRecord) -> None:
    run = make_record("der", 1)
    first, again, failed = (repeated(run, 2), repeated(run, 3), repeated(run, 4, "failed"))
    result = compared([again, first, failed, make_record("der", 2)])
    assert result.records[0] is again
    assert [int(n) for n in numbers_csv(result).split("last,")[1].split(",")[2:3]] == [2]
    assert result.notes[0].startswith("2 repetitions of a run left out")
    # Two attempts that failed: the newer one is the unfinished run.
    attempts = [repeated(run, day, "failed") for day in (1, 2)]
    assert compared(attempts).records == (attempts[1],)
