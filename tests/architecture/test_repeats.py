"""No method file repeats another's code, none is long: no six equal lines stand in two of them.

That the package has one epoch loop and one place that differentiates is checked by ``test_rooms``.
"""

import ast
import io
import tokenize
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path

from grace.settings.registry import METHODS as REGISTERED

METHODS = Path(__file__).parents[2] / "src" / "grace" / "methods"
LENGTH = 6

SOURCE = '''
"""A docstring."""
import torch

class {name}:
    """Another
    docstring."""

    def learn(self, task):  # {name}
        if task.number == 1:
            outcome = yield from self.first_task(task)

        else:
            # A comment of {name}.
            self.network = yield from {call}(self, task)
            outcome = Outcome("grow")
        yield from self.remember(task)
        return   outcome
'''


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


def test_methods_stay_short() -> None:
    # Their settings and pages included.
    lengths = {name: len((METHODS / f"{name}.py").read_text().splitlines()) for name in REGISTERED}
    assert {name: length for name, length in lengths.items() if length > 450} == {}


def test_six_equal_lines_are_found_whatever_stands_around_them() -> None:
    # Nine lines in all: the class's own, then eight, of which the fifth may differ.
    same = {name: SOURCE.format(name=name, call="grow") for name in ("One", "Other")}
    assert repeats(same) == [
        "One and Other: def learn(self, task):",
        "One and Other: if task.number == 1:",
        "One and Other: outcome = yield from self.first_task(task)",
    ]
    # The longest equal run is then the first four lines, or the last three.
    other = {"one": same["One"], "other": SOURCE.format(name="Other", call="boost")}
    assert repeats(other) == []
    assert repeats(other, 4) == ["one and other: def learn(self, task):"]


def test_what_does_not_count() -> None:
    assert code_lines(SOURCE.format(name="One", call="grow"))[:3] == [
        "class One:",
        "def learn(self, task):",
        "if task.number == 1:",
    ]
    long_import = "from a import (\n    b,\n    c,\n    d,\n    e,\n    f,\n)\n"
    assert code_lines(long_import + 'x = "# no comment"\n') == ['x = "# no comment"']
