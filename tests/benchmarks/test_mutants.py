"""Which mutants a file has, and that they are found again where their function moved."""

import importlib
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = '''"""A file."""

def first(x: int, y: int = 1) -> int:
    """Text 1 + 1."""
    if x < y and not y:
        raise ValueError(f"wrong {x + 1}")
    total = x + 2
    log(total)
    return total
'''


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    monkeypatch.chdir(tmp_path)
    return importlib.import_module("mutants")


def write(path: str, text: str) -> Path:
    place = Path("src/grace") / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    return place


def test_every_mutant_of_a_function(script: ModuleType) -> None:
    found = [(m.line, m.old, m.new) for m, _ in script.mutants(write("data/a.py", SOURCE))]
    branch, total = "if x < y and not y:", "total = x + 2"
    assert sorted(found) == sorted(
        [
            (branch, "x < y and not y", "(not (x < y and (not y)))"),
            (branch, "x < y and not y", "(x < y or not y)"),
            (branch, "x < y", "(x <= y)"),
            (branch, "not y", "(y)"),
            ('raise ValueError(f"wrong {x + 1}")', 'raise ValueError(f"wrong {x + 1}")', "pass"),
            (total, "x + 2", "(x - 2)"),
            (total, "2", "(3)"),
            ("log(total)", "log(total)", "pass"),
            ("return total", "return total", "return None"),
        ]
    )


def test_they_are_found_in_another_file_and_under_another_name(script: ModuleType) -> None:
    path = write("data/a.py", SOURCE)
    rows = [{"mutant": asdict(mutant)} for mutant, _ in script.mutants(path)]
    path.unlink()
    moved = SOURCE.replace("def first", "def renamed").replace("Text 1 + 1.", "Other words.")
    write("nn/b.py", "import os\n\n\n" + moved)
    assert [place.path for _, place in script.found_again(rows)] == ["nn/b.py"] * len(rows)
    write("nn/b.py", SOURCE.replace("total = x + 2", "total = 2 + x"))  # the same name, changed
    kept = [mutant.line for mutant, _ in script.found_again(rows)]
    assert len(kept) == len(rows) - 2
    assert "total = x + 2" not in kept
