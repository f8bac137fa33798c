"""The time of runs to come, from finished runs; records that cannot be used."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from grace.runs.model import RunRecord
from grace.settings.experiment import ExperimentSettings
from grace.settings.load import load_experiment
from grace.studies.plan import Records
from support.synthetic_records import MakeRecord


def seconds_of(settings: ExperimentSettings, records: Sequence[RunRecord]) -> float | None:
    found = Records([])
    found.known = {
        Path(str(place)): (record, ExperimentSettings.model_validate(record.info.config))
        for place, record in enumerate(records)
    }
    return found.seconds_of(settings)


def test_runs_of_the_same_method_tell_the_time(make_record: MakeRecord) -> None:
    records = [make_record("der", 1), make_record("der", 2), make_record("wa")]
    settings = load_experiment("digits", ["method=der", "seed=3"])
    # Five tasks of 1.75 s.
    assert seconds_of(settings, records) == pytest.approx(8.75)


def test_a_record_is_as_large_as_its_two_files(make_record: MakeRecord) -> None:
    record = make_record("der")
    files = [record.directory / name for name in ("run.json", "tasks.jsonl")]
    expected = sum(len(file.read_bytes()) for file in files)
    (record.directory / "report.html").write_bytes(bytes(10**6))
    assert Records([record.directory]).bytes_each == expected


def test_twice_the_epochs_take_longer(make_record: MakeRecord) -> None:
    # 10 epochs in every task; now 20 in the later ones.
    first, later = 287.4, 4 * 387.4
    settings = load_experiment("digits", ["method=der", "method.grow.epochs=20"])
    expected = 8.75 * (10 * first + 20 * later) / (10 * first + 10 * later)
    assert seconds_of(settings, [make_record("der")]) == pytest.approx(expected)


def test_a_run_on_a_loaded_machine_counts_like_any_other(make_record: MakeRecord) -> None:
    records = [make_record("der", seed) for seed in (1, 2, 3)]
    tasks = [
        task.model_copy(update={"seconds": task.seconds.model_copy(update={"total": 100.0})})
        for task in records[0].tasks
    ]
    loaded = replace(records[0], tasks=tasks)
    settings = load_experiment("digits", ["method=der"])
    assert seconds_of(settings, [loaded, *records[1:]]) == pytest.approx(8.75)


def test_other_methods_tell_the_time_by_images_and_epochs(make_record: MakeRecord) -> None:
    records = [make_record("der")]
    # 1,437 images in ten classes: 143.7 of each, 287.4 of a task; 100 exemplars. DER trains 10
    # epochs in every task, GRACE 10 at first, then 10 and 10.
    first, later = 287.4, 4 * 387.4
    der, grace = 10 * first + 10 * later, 10 * first + 20 * later
    settings = load_experiment("digits", ["method=grace"])
    assert seconds_of(settings, records) == pytest.approx(8.75 * grace / der)


@pytest.mark.parametrize(("given", "classes"), [("false", 2 + 4 + 6 + 8 + 10), ("true", 10)])
def test_joint_training_takes_all_images_again(
    make_record: MakeRecord, given: str, classes: int
) -> None:
    epochs = ["method.base.epochs=20", f"method.final_task_only={given}"]
    settings = load_experiment("digits", ["method=joint", *epochs])
    expected = 8.75 * 20 * 143.7 * classes / (10 * 287.4 + 10 * 4 * 387.4)
    assert seconds_of(settings, [make_record("der")]) == pytest.approx(expected)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("method", ["der", "grace"])
def test_a_record_without_its_number_of_images_tells_nothing(
    make_record: MakeRecord, method: str, place: int
) -> None:
    records = [make_record("der", 1), make_record("der", 2)]
    settings = load_experiment("digits", [f"method={method}"])
    expected = seconds_of(settings, records)
    info = records[place].info.model_copy(update={"dataset": None})
    records[place] = replace(records[place], info=info)
    assert expected is not None
    assert seconds_of(settings, records) == pytest.approx(expected)


def test_another_stream_tells_nothing(make_record: MakeRecord) -> None:
    records = [make_record("der")]
    assert seconds_of(load_experiment("digits", ["scenario.increment=5"]), records) is None
    assert seconds_of(load_experiment("cifar100-b0i10"), records) is None
    assert Records([]).bytes_each == 15_000
