"""The script that makes the results of studies again and brings them into the pages."""

import runpy
from pathlib import Path
from typing import Any

import pytest

from grace.studies.schema import list_studies

SCRIPT = Path(__file__).parents[2] / "docs" / "results" / "study_pages.py"


@pytest.fixture(scope="module")
def script() -> Any:
    return runpy.run_path(str(SCRIPT))


def test_every_study_has_a_page(script: Any) -> None:
    pages = "".join(path.read_text() for path in SCRIPT.parent.glob("*.md"))
    named = set(script["MARKER"].findall(pages))
    assert named == set(script["STUDIES"]) == set(list_studies())


@pytest.fixture(scope="module")
def records(script: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    script["unpacked"](folder)
    return folder


@pytest.mark.parametrize("name", ["saturation", "grid", "autoaugment"])
def test_a_page_has_what_its_records_give(name: str, script: Any, records: Path) -> None:
    page = (SCRIPT.parent / f"{name}.md").read_text()
    figures = [path.stem[len(name) + 1 :] for path in SCRIPT.parent.glob(f"figures/{name}-*.svg")]
    order = sorted(figures, key=lambda figure: page.index(f"{name}-{figure}.svg"))
    new = script["block"](name, script["results_of"](name, records), order)
    assert script["between"](page, f"study {name}", new) == page
