"""The page of exit codes names every code that the commands end with."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_exit_code_has_a_row() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "src/grace/cli").glob("*.py"))
    used = set(re.findall(r"typer\.Exit\((\d+)\)", sources))
    rows = re.findall(r"^\| (\d+) \|", (ROOT / "docs/exit-codes.md").read_text(), re.MULTILINE)
    assert used >= {"1", "2", "3", "130"}
    assert set(rows) == {"0", *used}
