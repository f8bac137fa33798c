"""The tables and claims of published records, made again: every number is the one of then.

``published/`` has what an earlier implementation, without pandas, wrote from the same archives.
"""

import csv
import io
import tarfile
from pathlib import Path

import pytest

from grace.studies.claims import judge_claims
from grace.studies.plan import Plan, Selection
from grace.studies.results import StudyResult
from grace.studies.schema import load_study
from grace.studies.table import claims_csv, numbers_csv

THEN = Path(__file__).parent / "published"
ARCHIVES = Path(__file__).parents[2] / "docs" / "results" / "data"
STUDIES = {
    "benchmark": "xeon-records",
    "memory-aligned": "xeon-records",
    "grid": "xeon-records",
    "class-prior": "study-records",
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    for name in set(STUDIES.values()):
        with tarfile.open(ARCHIVES / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
    return folder


def lines(text: str) -> list[list[str]]:
    return [list(row) for row in csv.reader(io.StringIO(text))]


@pytest.mark.parametrize("name", STUDIES)
def test_tables_and_claims_are_those_of_then(name: str, records: Path) -> None:
    folders = [records / STUDIES[name]]
    results = StudyResult.of(Plan(load_study(name), Selection(), folders, any_version=True))
    made = {name: numbers_csv(results), f"{name}-claims": claims_csv(judge_claims(results))}
    for file, text in made.items():
        then, now = lines((THEN / f"{file}.csv").read_text()), lines(text)
        assert [len(row) for row in now] == [len(row) for row in then]
        for old, new in zip(then, now, strict=True):
            for one, other in zip(old, new, strict=True):
                try:
                    assert float(other) == pytest.approx(float(one), rel=1e-12, abs=1e-12)
                except ValueError:
                    assert other == one
