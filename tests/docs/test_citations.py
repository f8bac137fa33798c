"""Code, tests and pages cite pages of the documentation that exist, and headings that they have."""

import re
import unicodedata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for folder in ("src", "tests", "docs", "benchmarks", "examples")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md", ".yaml") and "earlier" not in path.parts
]
CITATION = re.compile(r"\bdocs/([\w/-]+\.md)(?:#([\w-]+))?")
LINK = re.compile(r"\]\(([\w./-]+\.md)?#([\w-]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors that the site gives to a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return {anchor(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def anchor(heading: str) -> str:
    """As Python-Markdown's ``toc`` makes them."""
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def test_an_unpublished_document_is_not_cited() -> None:
    word = "spec" + " §"
    found = [path for path in FILES if word in path.read_text()]
    assert found == []


def test_cited_pages_and_headings_exist() -> None:
    missing = []
    for path in FILES:
        for name, heading in CITATION.findall(path.read_text()):
            page = ROOT / "docs" / name
            if not page.exists() or (heading and heading not in anchors(page)):
                missing.append(f"{path.relative_to(ROOT)}: docs/{name}#{heading}")
    assert missing == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.stem)
def test_links_lead_to_headings(page: Path) -> None:
    wrong = []
    for name, heading in LINK.findall(page.read_text()):
        target = page.parent / name if name else page
        if heading not in anchors(target):
            wrong.append(f"{name}#{heading}")
    assert wrong == []


def test_anchors_are_those_of_the_site() -> None:
    assert anchor("Memory-aligned counts") == "memory-aligned-counts"
    assert anchor("run.json") == "runjson"
