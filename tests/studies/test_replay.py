"""Verdicts from saturations, and which runs serve several pairs of settings."""

from grace.runs.model import RunRecord
from grace.studies.plan import serves
from support.synthetic_records import MakeRecord
from support.synthetic_records import make_record as make_record

RISING = (0.53, 0.58, 0.60, 0.58)


def recorded(make_record: MakeRecord, verdicts: tuple[str, ...], **kwargs: object) -> RunRecord:
    """A run of the saturations above with these verdicts."""
    record = make_record(task_sizes=(2, 2, 2, 2, 2), verdicts=("start", *verdicts), **kwargs)
    found = [None, *RISING]
    tasks = [
        task.model_copy(update={"saturation": saturation})
        for task, saturation in zip(record.tasks, found, strict=False)
    ]
    return RunRecord(record.directory, record.info, tuple(tasks))


def test_a_run_serves_the_pairs_with_its_verdicts(make_record: MakeRecord) -> None:
    # .65, .624, .599 (grow), .575: c c g c; .64: likewise. With (.65, .90): .65, .585 compress,
    # .5265 expands. (.65, .98): .65, .637, .6243, .6118: c c c c.
    record = recorded(make_record, ("compress", "compress", "grow", "compress"))
    assert serves(record, 0.65, 0.96)
    assert serves(record, 0.65, 0.90)
    assert serves(record, 0.64, 0.96)
    assert not serves(record, 0.65, 0.98)
    assert not serves(record, 0.5, 0.9)


def test_a_run_without_room_serves_where_its_other_verdicts_agree(make_record: MakeRecord) -> None:
    # τ = .65, .624, .599 (no room to grow: it decays on), .575: grow.
    record = recorded(make_record, ("compress", "compress", "compress (budget)", "grow"))
    assert serves(record, 0.65, 0.96)
    assert not serves(record, 0.65, 0.98)


def test_an_unfinished_run_serves_nothing(make_record: MakeRecord) -> None:
    record = recorded(make_record, ("compress", "compress", "grow", "compress"), done=3)
    assert not serves(record, 0.65, 0.96)
