"""Cells of studies: their settings, the runs that they wait for, and aligned memories."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from grace.base.errors import GraceError
from grace.runs.model import DatasetRecord, ParameterRecord, RunRecord
from grace.studies.plan import Found, Selection, aligned_size, all_runs, settings_of, study_cells
from grace.studies.schema import StudySettings, load_study
from support.synthetic_records import MakeRecord


def sized(
    record: RunRecord, parameters: int, backbones: int, shape: tuple[int, int, int], memory: int
) -> RunRecord:
    """The same run with another network at its end, other images and another memory."""
    last = record.tasks[-1].model_copy(
        update={
            "parameters": ParameterRecord(backbones=parameters, heads=0, total=parameters),
            "backbones": backbones,
        }
    )
    config = record.info.config | {"memory": {"size": memory}}
    dataset = DatasetRecord(name="x", num_train=1, num_test=1, shape=shape)
    info = record.info.model_copy(update={"config": config, "dataset": dataset})
    return replace(record, info=info, tasks=(*record.tasks[:-1], last))


CIFAR, IMAGENET = (3, 32, 32), (3, 224, 224)
ONE, LARGE = 463504, 11_168_832
"""ResNet-32 for CIFAR, 603.52 raw images; ResNet-18 with the 3×3 stem."""


@pytest.mark.parametrize(
    ("tasks", "own", "size"),
    # docs/protocols.md#memory-aligned-counts: one backbone, and GRACE's, of T.
    [(20, 1, 13466), (10, 1, 7431), (10, 5, 5017), (26, 7, 13466), (10, 10, 2000)],
)
def test_the_memory_that_costs_what_der_costs(
    tasks: int, own: int, size: int, make_record: MakeRecord
) -> None:
    record = make_record("der")
    der = sized(record, tasks * ONE, tasks, CIFAR, 2000)
    assert aligned_size(sized(record, own * ONE, own, CIFAR, 2000), der) == size


def test_aligned_memories_of_larger_and_smaller_images(make_record: MakeRecord) -> None:
    record, small, one = make_record("der"), (3, 16, 16), 269072
    der = sized(record, 20 * LARGE, 20, IMAGENET, 2000)
    assert aligned_size(sized(record, LARGE, 1, IMAGENET, 2000), der) == 7639
    # The small scale buys 121 images with a backbone.
    der = sized(record, 5 * one, 5, small, 400)
    for own, size in ((1, 884), (3, 642), (5, 400)):
        assert aligned_size(sized(record, own * one, own, small, 400), der, 121) == size
    larger = sized(record, 6 * one, 6, small, 400)
    with pytest.raises(GraceError, match="more than the reference's"):
        aligned_size(larger, der)


def test_aligned_rows_wait_for_two_runs(make_record: MakeRecord) -> None:
    study = load_study("memory-aligned")
    selection = Selection("small", rows=("replay", "grace-held"), seeds=(1,))
    cells = study_cells(study, selection)
    runs = all_runs(cells)
    # DER, plain Replay, Replay; plain GRACE (by whose count it is aligned, and whose expansions it
    # repeats), grace-held.
    assert len(runs) == 5
    assert [len(run.needs) for run in runs] == [0, 0, 2, 0, 3]
    assert [run.name for run in runs] == [
        *("replay b0i4 s1 plain", "der b0i4 s1", "replay b0i4 s1"),
        *("grace-held b0i4 s1 plain", "grace-held b0i4 s1"),
    ]
    assert settings_of(runs[2], {}) is None
    plain = make_record("grace", verdicts=["start", "grow", "compress", "grow", "compress"])
    small = sized(plain, 2 * ONE, 2, (3, 16, 16), 400)
    der = sized(make_record("der"), 5 * ONE, 5, (3, 16, 16), 400)
    found = {runs[1]: Found(der), runs[0]: Found(der), runs[3]: Found(small)}
    held = settings_of(runs[4], found)
    assert held is not None
    assert held.memory.size == 400 + 3 * 121
    assert held.method.model_dump()["expand_at"] == (2, 4)


def test_overrides_go_to_every_run_and_a_seed_sets_all_but_the_published_order() -> None:
    study = load_study("ablation")
    chosen = Selection("published", rows=("IFL",), seeds=(7,), overrides=("memory.size=50",))
    [cell] = study_cells(study, chosen)
    settings = settings_of(cell.run, {})
    assert settings.memory.size == 50
    assert settings.seeds.model_dump() == {
        "class_order": 1993,
        "initialisation": 7,
        "data": 7,
        "exemplars": 7,
    }


def study_of(rows: dict[str, Any], **scale: Any) -> StudySettings:
    small = {"protocols": {"p": {"experiment": "digits"}}, "seeds": [1]} | scale
    return StudySettings.model_validate({"scales": {"small": small}, "rows": rows})


def test_a_row_with_the_name_of_a_point_is_refused() -> None:
    pairs = {"method": "grace", "grid": {"method.threshold": [0.4, 0.5]}}
    study = study_of({"0.5": {"method": "der"}, "pairs": pairs})
    with pytest.raises(GraceError, match=r"0\.5 p s1 is given twice"):
        study_cells(study, Selection())
    assert len(study_cells(study, Selection(rows=("pairs",)))) == 2


def test_a_row_that_cannot_be_told_when_to_expand_is_refused_before_others_are_made() -> None:
    held = {"method": "der", "expands_like": "own"}
    own = {"method": "grace"}
    with pytest.raises(GraceError, match="expand_at: no such setting; it belongs to method grace"):
        study_cells(study_of({"own": own, "held": held}), Selection())
    assert len(study_cells(study_of({"own": own, "held": held | own}), Selection())) == 2


@pytest.mark.parametrize("where", ["scale", "protocol", "row", "grid"])
def test_a_seed_beside_those_of_the_scale_is_refused(where: str) -> None:
    given = {"set": ["seed=4"]}
    row: dict[str, Any] = {"method": "der"} | (given if where == "row" else {})
    row |= {"grid": {"seed": [1, 2]}} if where == "grid" else {}
    protocol = {"experiment": "digits"} | (given if where == "protocol" else {})
    with pytest.raises(ValidationError, match=r"'seed.* has no effect: a scale's 'seeds' are"):
        study_of({"der": row}, protocols={"p": protocol}, **(given if where == "scale" else {}))
