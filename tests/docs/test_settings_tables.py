import runpy
from pathlib import Path
from typing import Any

import pytest

from grace.settings.registry import METHODS

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "settings_tables.py"))


def test_every_model_has_a_table(script: dict[str, Any]) -> None:
    text = "".join(page.read_text() for page in DOCS.rglob("*.md"))
    text += "".join(script["method_page"](name) for name in script["generated"]())
    assert [name for name in script["models"]() if f"<!-- settings: {name} -->" not in text] == []


def test_every_method_has_a_page_of_its_own_or_one_made_from_its_file(
    script: dict[str, Any],
) -> None:
    assert set(script["generated"]()) | {p.stem for p in (DOCS / "methods").glob("*.md")} >= set(
        METHODS
    )
    for name in METHODS:
        page = script["method_page"](name)
        assert page.startswith("# ")
        assert f"<!-- settings: {name} -->" in page
        assert len(script["filled"](page).split()) > 60
