"""The settings tables of the pages are those of the models."""

import runpy
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "settings_tables.py"))


def test_every_table_is_up_to_date(script: dict[str, Any]) -> None:
    pages = list(script["pages"]())
    assert [page for page in pages if "<!-- settings: " in page.read_text()]
    stale = [page for page in pages if script["updated"](page.read_text()) != page.read_text()]
    assert not stale, "run python docs/settings_tables.py"


def test_every_model_has_a_table(script: dict[str, Any]) -> None:
    text = "".join(page.read_text() for page in script["pages"]())
    assert [name for name in script["models"]() if f"<!-- settings: {name} -->" not in text] == []


def test_a_row_says_default_values_and_meaning(script: dict[str, Any]) -> None:
    # Written out by hand from the published settings.
    table = script["table"](*script["models"]()["grace"]).splitlines()
    assert table[2] == (
        "| `method.base` | 200 epochs, lr 0.1, ×0.1 at 60/120/170, weight decay 0.0005, batch 128 "
        "|  | recipe of the first task |"
    )
    assert "| `method.threshold_decay` | `0.96` | > 0 and ≤ 1 |" in "\n".join(table)


def test_an_unknown_marker_is_named(script: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no settings are named 'greece'"):
        script["updated"]("<!-- settings: greece --> <!-- end settings -->")


def test_every_method_has_a_page(script: dict[str, Any]) -> None:
    from grace.settings.registry import BUILT_IN

    for model in BUILT_IN:
        name = model.model_fields["name"].default
        assert (DOCS / "methods" / f"{name}.md").is_file()
