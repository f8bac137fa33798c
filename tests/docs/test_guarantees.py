"""Every test and script that the pages of guarantees and of security name is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [(ROOT / "docs" / name).read_text() for name in ("learner/guarantees.md", "security.md")]
PAGE = "\n".join(PAGES)
TESTS = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
SCRIPTS = re.findall(r"`(benchmarks/\w+\.py)`", PAGE)


@pytest.mark.parametrize(("file", "name"), sorted(set(TESTS)))
def test_a_named_test_is_there(file: str, name: str) -> None:
    text = (ROOT / file).read_text()
    assert not name or re.search(rf"^\s*def {name}\(", text, re.MULTILINE)


@pytest.mark.parametrize("script", sorted(set(SCRIPTS)))
def test_a_named_script_is_there_with_its_result(script: str) -> None:
    assert (ROOT / script).is_file()
    results = [
        path
        for path in (ROOT / "benchmarks" / "results").glob("*.md")
        if f"python {script}" in path.read_text()
    ]
    assert results, f"no result of {script} is kept"


def test_promises_are_many() -> None:
    assert len(TESTS) > 30
