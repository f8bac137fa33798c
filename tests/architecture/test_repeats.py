"""No method file repeats another's code: no six equal lines stand in two of them.

That the package has one epoch loop and one place that differentiates is checked by ``test_rooms``.
"""

import ast
import io
import tokenize
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

METHODS = Path(__file__).parents[2] / "src" / "grace" / "methods"
LENGTH = 6


def code_lines(source: str) -> list[str]:
    """The lines of a file without docstrings, imports, comments and blanks; spaces are folded."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text or isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    kept = (line for row, line in enumerate(lines, start=1) if row not in left_out)
    return [" ".join(line.split()) for line in kept if line.strip()]


def repeats(files: Mapping[str, str], length: int = LENGTH) -> list[str]:
    """Every run of ``length`` lines that stands in two files, as "a and b: its first line"."""
    runs = {}
    for name, source in files.items():
        lines = code_lines(source)
        starts = range(len(lines) - length + 1)
        runs[name] = {tuple(lines[start : start + length]) for start in starts}
    return [
        f"{one} and {other}: {run[0]}"
        for one, other in combinations(runs, 2)
        for run in sorted(runs[one] & runs[other])
    ]


def test_no_method_repeats_another() -> None:
    files = {path.name: path.read_text() for path in sorted(METHODS.glob("*.py"))}
    assert {"grace.py", "der.py", "method.py"} <= files.keys()
    assert repeats(files) == []


def test_six_equal_lines_are_found_whatever_stands_around_them() -> None:
    lines = [f"x{number} = {number}" for number in range(7)]
    one = '"""Of one."""\nimport a\n' + "\n".join(lines)
    other = '"""Of other."""\n\n' + "  # here\n\n".join(lines).replace(" = ", "  =  ")
    assert repeats({"a": one, "b": other}) == ["a and b: x0 = 0", "a and b: x1 = 1"]
    assert repeats({"a": one, "b": other.replace("3", "4")}) == []
    assert repeats({"a": one, "b": other.replace("3", "4")}, 3) == [
        "a and b: x0 = 0",
        "a and b: x4 = 4",
    ]
    assert code_lines('from a import (\n    b,\n)\nx = "# no comment"\n') == ['x = "# no comment"']
