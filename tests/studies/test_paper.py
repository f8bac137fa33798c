"""The packaged numbers of the paper."""

import itertools
from pathlib import Path

import pytest

from grace.base.errors import GraceError
from grace.settings.load import list_experiments
from grace.settings.registry import METHODS
from grace.settings.study import StudySettings, load_study
from grace.studies.made_study import MadeStudy
from grace.studies.paper import PaperTable, paper_numbers, place_in_paper, row_in_paper
from grace.studies.study_cells import Selection, study_cells
from grace.studies.study_results import Results

PAPER = paper_numbers()


def printed(table: PaperTable) -> int:
    return sum(cell.value is not None for cell in table.cells)


def test_table_3_has_two_data_sets() -> None:
    # 2,000 exemplars and 297 (CIFAR: 603.52) for each of nine backbones that DER has more.
    found = [
        PAPER.value("table-3", "replay", "b0i10", "exemplars", dataset)
        for dataset in ("", "cifar100", "imagenet100")
    ]
    assert found == [7431, 7431, 4671]
    assert 2000 + int(9 * 463504 * 4 / 3072) == 7431


def test_all_of_it_is_there() -> None:
    assert [printed(table) for table in PAPER.tables] == [132, 95, 102, 16, 24, 24]
    assert len(PAPER.claims) == 20
    assert [entry.id for entry in PAPER.contradictions] == [f"X{i}" for i in range(1, 14)]
    assert "2603.08426" in PAPER.paper


@pytest.mark.parametrize(
    ("table", "row", "protocol", "metric", "value"),
    [
        ("table-1", "finetune", "b0i5", "last", 4.94),
        ("table-1", "finetune", "b50i2", "average", 5.79),
        ("table-1", "grace", "b50i2", "parameters", 3.22),
        ("table-3", "replay", "b0i10", "exemplars", 7431),
        ("table-4", "IFL", "b0i10", "average", 71.44),
        ("table-4", "-FL", "b0i10", "last", 47.64),
        ("table-5", "grace:average", "b0i10", "average", 70.64),
        ("table-6", "grace", "b50i10", "average", 74.1),
        ("table-2", "beef", "b0i5", "last", None),  # a dash
        ("table-2", "grace", "b50i2", "last", None),  # not in the paper
        ("table-1", "wa", "b0i5", "last", None),
    ],
)
def test_single_numbers(
    table: str, row: str, protocol: str, metric: str, value: float | None
) -> None:
    assert PAPER.value(table, row, protocol, metric) == value


@pytest.mark.parametrize("name", ["table-1", "table-2"])
def test_the_printed_differences_are_grace_minus_der(name: str) -> None:
    table = PAPER.table(name)
    for column in table.columns:
        grace, der, delta = (
            PAPER.value(name, row, column.protocol, column.metric)
            for row in ("grace", "der", "delta")
        )
        assert None not in (grace, der, delta)
        assert grace is not None
        assert der is not None
        if column.metric == "parameters":
            # Truncated to two digits before the division.
            assert delta == pytest.approx(100 * (grace / der - 1), abs=1.5)
        else:
            assert delta == pytest.approx(grace - der, abs=0.011)


def test_marks_are_the_best_and_second_of_each_column() -> None:
    table = PAPER.table("table-1")
    marked = [cell for cell in table.cells if cell.mark and cell.metric != "parameters"]
    places = [column for column in table.columns if column.metric != "parameters"]
    assert len(marked) >= len(places)
    first = [cell.row for cell in marked if cell.mark == "best"]
    assert first.count("grace") == 7  # M5: 7 of 8 columns


def test_rows_and_columns_are_known_to_the_package() -> None:
    experiments = list_experiments()
    for table in PAPER.tables:
        assert {row.method for row in table.rows} - {None} <= set(METHODS)
        assert {column.experiment for column in table.columns} <= experiments.keys()
        pairs = itertools.product(table.rows, table.columns)
        missing = [
            (row.row, column)
            for row, column in pairs
            if table.cell(row.row, column.protocol, column.metric, column.dataset) is None
        ]
        assert missing == []


def test_claims_are_checked_against_the_tables() -> None:
    found = {claim.id: claim for claim in PAPER.claims}
    assert found["ablation-each-helps"].check.holds is True
    assert found["ablation-all-combinations"].check.holds is False
    assert found["initialisation-gain"].check.holds == "partly"
    assert found["foster-margin-high"].value == 13
    assert found["versatility"].check.holds is None


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(GraceError, match="no table 'table-7'; did you mean 'table-"):
        PAPER.value("table-7", "der", "b0i5", "last")


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("", ("table-1", "mine", "")),
        ("b0i5", ("table-1", "b0i5", "")),
        ("b0i5/cifar100", ("table-1", "b0i5", "cifar100")),
        ("table-3", ("table-3", "mine", "")),
        ("table-3/b0i5/imagenet100", ("table-3", "b0i5", "imagenet100")),
    ],
)
def test_the_place_in_the_paper(given: str, place: tuple[str, str, str]) -> None:
    assert place_in_paper("table-1", given, "mine") == place
    assert place_in_paper("", "b0i5", "mine") == ("", "b0i5", "")


@pytest.mark.parametrize("given", ["table-9/b0i5", "table-1/b0i6", "table-3/b0i5/cifar10"])
def test_a_study_names_what_the_paper_has(given: str) -> None:
    """It was said after all runs, or ended in a KeyError."""
    protocol = {"experiment": "digits", "paper": given}
    study = StudySettings.model_validate(
        {"scales": {"s": {"protocols": {"p": protocol}}}, "rows": {"r": {"method": "grace"}}}
    )
    with pytest.raises(GraceError, match=r"paper has no (table|protocol|data set)"):
        study_cells(study, Selection())


def test_a_study_names_a_row_that_the_paper_has() -> None:
    rows = {"r": {"method": "grace", "paper": "graec"}, "none": {"method": "der", "paper": "none"}}
    scales = {"s": {"protocols": {"b0i10": {"experiment": "digits"}}}}
    found = {"scales": scales, "rows": rows, "paper": "table-6"}
    study = StudySettings.model_validate(found)
    with pytest.raises(GraceError, match=r"table-6 of the paper has no row 'graec'.* 'grace'"):
        study_cells(study, Selection())
    assert study_cells(study, Selection(rows=("none",)))
    assert row_in_paper("table-6", "table-1/der", "der-plain") == ("table-1", "der")
    assert row_in_paper("table-6", "", "der-held") == ("table-6", "der-held")


def test_gains_by_augmentation_as_the_specification_has_them(tmp_path: Path) -> None:
    study = load_study("autoaugment")
    results = Results(MadeStudy(study, Selection("published"), (), {}, {}, (), tmp_path, None))

    def printed(row: str, protocol: str, key: str) -> float:
        return results.paper(row, protocol, key) or 0

    gains = [
        printed(row, protocol, key) - printed(f"{row}-plain", protocol, key)
        for protocol in ("b0i10", "b50i10")
        for row in ("der", "grace")
        for key in ("last", "average")
    ]
    assert gains == pytest.approx([8.30, 5.89, 7.18, 5.56, 6.90, 5.39, 6.87, 5.25])
