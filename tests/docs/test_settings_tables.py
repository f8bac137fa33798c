"""The settings tables of the pages are those of the models."""

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


def test_a_row_says_default_values_and_meaning(script: dict[str, Any]) -> None:
    # Written out by hand from the published settings.
    table = script["table"](*script["models"]()["grace"]).splitlines()
    assert table[2] == (
        "| `method.base` | 200 epochs, lr 0.1, ×0.1 at 60/120/170, weight decay 0.0005, batch 128 "
        "|  | recipe of the first task |"
    )
    assert "| `method.threshold_decay` | `0.96` | > 0 and ≤ 1 |" in "\n".join(table)


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
