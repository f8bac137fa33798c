import pytest

from grace.base.errors import GraceError
from grace.studies.paper import paper_tables, paper_value, place_in_paper, row_in_paper
from grace.studies.plan import Selection, study_cells
from grace.studies.schema import StudySettings

CIFAR = "cifar100"


def test_all_of_it_is_there() -> None:
    tables = paper_tables().values()
    assert [sum(cell["value"] is not None for cell in table["cells"]) for table in tables] == [
        *(132, 95, 102, 16, 24, 24)
    ]
    # 2,000 exemplars and 297 (CIFAR: 603.52) for each of nine backbones that DER has more.
    two = [
        paper_value("table-3", "replay", "b0i10", "exemplars", d) for d in (CIFAR, "imagenet100")
    ]
    assert two == [7431, 4671]


@pytest.mark.parametrize(
    ("table", "row", "protocol", "metric", "value"),
    [
        ("table-1", "finetune", "b0i5", "last", 4.94),
        ("table-1", "grace", "b50i2", "parameters", 3.22),
        ("table-1", "grace", "b50i2", "backbones", 7),  # 3.22 of 0.46 M.
        ("table-4", "IFL", "b0i10", "average", 71.44),
        ("table-5", "grace:average", "b0i10", "average", 70.64),
        ("table-2", "grace", "b50i2", "last", None),  # not in the paper
        ("table-1", "wa", "b0i5", "last", None),
    ],
)
def test_single_numbers(
    table: str, row: str, protocol: str, metric: str, value: float | None
) -> None:
    assert paper_value(table, row, protocol, metric, CIFAR) == value
    assert paper_value("table-2", "beef", "b0i5", "last", "imagenet100") is None  # a dash


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("", ("table-1", "mine", CIFAR)),
        ("b0i5", ("table-1", "b0i5", CIFAR)),
        ("b0i5/cifar100", ("table-1", "b0i5", CIFAR)),
        ("table-3", ("table-3", "mine", CIFAR)),
        ("table-3/b0i5/imagenet100", ("table-3", "b0i5", "imagenet100")),
    ],
)
def test_the_place_in_the_paper(given: str, place: tuple[str, str, str]) -> None:
    assert place_in_paper("table-1", given, "mine") == place
    assert place_in_paper("", "b0i5", "mine") == ("", "b0i5", "")


@pytest.mark.parametrize(
    ("paper", "given", "row", "why"),
    [
        ("", "table-9/b0i5", "none", "the paper has no table 'table-9'"),
        ("", "table-1/b0i6", "none", "table-1 of the paper has no protocol 'b0i6'"),
        ("", "table-3/b0i5/cifar10", "none", "table-3 of the paper has no data set 'cifar10'"),
        ("table-6", "", "graec", r"table-6 of the paper has no row 'graec'.* 'grace'"),
    ],
)
def test_a_study_names_what_the_paper_has(paper: str, given: str, row: str, why: str) -> None:
    scales = {"s": {"protocols": {"b0i10": {"experiment": "digits", "paper": given}}}}
    rows = {"r": {"method": "grace", "paper": row}}
    study = StudySettings.model_validate({"scales": scales, "rows": rows, "paper": paper})
    with pytest.raises(GraceError, match=why):
        study_cells(study, Selection())


def test_the_row_in_the_paper() -> None:
    assert row_in_paper("table-6", "table-1/der", "der-plain") == ("table-1", "der")
    assert row_in_paper("table-6", "", "der-held") == ("table-6", "der-held")
