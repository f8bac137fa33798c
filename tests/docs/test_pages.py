"""Pages lead to files, headings, tests, scripts and exit codes that exist."""

import re
import unicodedata
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
FILES = [
    path
    for folder in ("src", "tests", "docs", "benchmarks", "examples")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md", ".yaml")
]


def anchor(heading: str) -> str:
    """As Python-Markdown's ``toc`` makes them."""
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def prose(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def has(target: Path, heading: str) -> bool:
    """True if a file is there, and has this heading if one is asked for."""
    if not heading:
        return target.exists()
    headings = re.findall(r"^#+ (.+)$", prose(target), re.MULTILINE)
    return heading in map(anchor, headings)


def test_links_lead_to_files_and_headings() -> None:
    assert anchor("Memory-aligned counts") == "memory-aligned-counts"
    wrong = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            name, _, heading = link.partition("#")
            own = heading if name.endswith(".md") or not name else ""
            if "://" not in link and not link.startswith("mailto:"):
                wrong += [f"{page}: {link}"] * (not has(page.parent / name if name else page, own))
    assert wrong == []


def test_cited_pages_and_headings_exist() -> None:
    wrong = [
        f"{path}: docs/{name}#{heading}"
        for path in FILES
        for name, heading in re.findall(r"\bdocs/([\w/-]+\.md)(?:#([\w-]+))?", path.read_text())
        if not has(DOCS / name, heading)
    ]
    assert wrong == []


def test_what_the_pages_of_promises_name_is_there() -> None:
    text = "".join((DOCS / name).read_text() for name in ("learner/guarantees.md", "security.md"))
    tests = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", text)
    assert len(tests) > 30
    for file, name in tests:
        source = (ROOT / file).read_text()
        assert not name or re.search(rf"^\s*def {name}\(", source, re.MULTILINE), (file, name)
    results = [path.read_text() for path in (ROOT / "benchmarks" / "results").glob("*.md")]
    for script in re.findall(r"`(benchmarks/\w+\.py)`", text):
        assert (ROOT / script).is_file()
        assert any(f"python {script}" in result for result in results), script


def test_every_exit_code_has_a_row() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src/grace/cli").glob("*.py"))
    used = set(re.findall(r"typer\.Exit\((\d+)\)", sources))
    rows = re.findall(r"^\| (\d+) \|", (DOCS / "exit-codes.md").read_text(), re.MULTILINE)
    assert used >= {"1", "2", "3", "130"}
    assert set(rows) == {"0", *used}
