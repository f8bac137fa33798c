"""Pages link to what is there, and none takes another's place."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    files = [link for link in links if link and "://" not in link and link[:7] != "mailto:"]
    assert [link for link in files if not (page.parent / link).exists()] == []


def test_no_page_is_built_over_a_file() -> None:
    """The site has "a.html" for "a.md"."""
    assert [path for path in DOCS.rglob("*.html") if path.with_suffix(".md").exists()] == []
