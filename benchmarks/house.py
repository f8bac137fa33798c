"""Measure how easy the code is to read: sizes, docstrings, imports inside functions, asserts.

::

    python benchmarks/house.py                     # this checkout
    python benchmarks/house.py OTHER_CHECKOUT      # beside another one, to compare two commits
"""

import ast
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef
Measures = dict[str, float | int | str]

_TENSOR = re.compile(r"\bTensor\b")
_SHAPE = re.compile(
    r"\(\w+(?:[·*+]\w+)?(?:, ?(?:\w+|…))*,?\)|\bscalar\b|0-d|of any shape|\b[Ss]hapes?\b"
)


def main(roots: list[Path]) -> None:
    """Print one column of measures for each checkout."""
    columns = [measure(root) for root in roots]
    for name in dict.fromkeys(name for column in reversed(columns) for name in column):
        print(f"| {name} | " + " | ".join(str(column.get(name, "–")) for column in columns) + " |")


def measure(root: Path) -> Measures:
    """Measure the package and the tests of one checkout."""
    files = sorted((root / "src").rglob("*.py"))
    trees = {path: ast.parse(path.read_text()) for path in files}
    lengths = {path: len(path.read_text().splitlines()) for path in files}
    functions = [node for tree in trees.values() for node in _functions(tree)]
    function_lengths = [_length(node) for node in functions]
    public = [n for tree in trees.values() for n in _public_functions(tree)]
    tensors = [n for n in public if _TENSOR.search(_signature(n))]
    # The module's legend counts: one scheme for all functions of a file.
    legends = {id(n): ast.get_docstring(t) or "" for t in trees.values() for n in _functions(t)}
    shaped = [n for n in tensors if _SHAPE.search(_doc(n) + legends[id(n)])]
    many = [n for n in public if len(_parameters(n)) >= 3]
    rooms: Counter[str] = Counter()
    for path, length in lengths.items():
        parts = path.relative_to(root / "src" / "grace").parts
        rooms[parts[0] if len(parts) > 1 else "(top)"] += length
    tests = [ast.parse(path.read_text()) for path in sorted((root / "tests").rglob("*.py"))]
    asserts = [node for tree in tests for node in ast.walk(tree) if _is_assertion(node)]
    numerical = [node for node in asserts if _is_numerical(node)]
    num_test_lines = sum(
        len(path.read_text().splitlines()) for path in (root / "tests").rglob("*.py")
    )
    return {
        "files": len(files),
        "lines of src": sum(lengths.values()),
        "lines of tests": num_test_lines,
        **{f"lines of {room}/": rooms[room] for room in sorted(rooms)},
        "median lines of a file": statistics.median(lengths.values()),
        "files over 300 lines": sum(length > 300 for length in lengths.values()),
        "functions over 60 lines": sum(length > 60 for length in function_lengths),
        "longest function, lines": max(function_lengths),
        "private modules": sum(p.name.startswith("_") and p.name[1] != "_" for p in files),
        "imports inside functions": sum(map(_inner_imports, trees.values())),
        "public tensor docstrings with shapes, %": _share(shaped, tensors),
        "Args section where there are 3 or more parameters, %": _share(
            [n for n in many if "Args:" in _doc(n) or _is_verb(n)], many
        ),
        "asserts": len(asserts),
        "numerical asserts, %": _share(numerical, asserts),
        "citations of an unpublished document": sum(p.read_text().count("spec §") for p in files),
        "messages cut or rewritten": sum(
            len(re.findall(r"str\(error\)\.\w|re\.sub\([^)]*str\(error", p.read_text()))
            for p in files
        ),
    }


def _functions(tree: ast.AST) -> Iterator[Function]:
    yield from (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


def _public_functions(tree: ast.Module) -> Iterator[Function]:
    """Functions and methods that a reader may call, in modules, whatever the module's name."""
    scopes: list[ast.Module | ast.ClassDef] = [tree]
    scopes += [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name[0] != "_"]
    for scope in scopes:
        for node in scope.body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
                continue
            if not any(ast.unparse(d) in ("override", "overload") for d in node.decorator_list):
                yield node


def _parameters(node: Function) -> list[str]:
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return [name for name in names if name not in ("self", "cls")]


def _signature(node: Function) -> str:
    arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    own = [ast.unparse(a.annotation) for a in arguments if a.annotation]
    return " ".join([*own, ast.unparse(node.returns) if node.returns else ""])


def _is_verb(node: Function) -> bool:
    """A verb of the command line: the help of its options documents its parameters."""
    return bool(re.search(r"\btyper\.|\boptions\.", _signature(node)))


def _doc(node: Function) -> str:
    return ast.get_docstring(node) or ""


def _length(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _inner_imports(tree: ast.Module) -> int:
    """Imports that run when a function does, whatever they import."""
    return sum(
        isinstance(node, ast.Import | ast.ImportFrom)
        for function in _functions(tree)
        for node in ast.walk(function)
    )


def _is_assertion(node: ast.AST) -> bool:
    if isinstance(node, ast.Assert):
        return True
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("assert_close")


def _is_numerical(node: ast.AST) -> bool:
    """Return True if floats or tensors are compared, also by the tests' ``same`` and ``near``."""
    text = ast.unparse(node)
    if re.search(r"approx\(|assert_close|allclose|isclose|torch\.equal\(", text):
        return True
    if re.search(r"\b(same|same_parts|near)\(", text):
        return True
    numbers = [n for n in ast.walk(node) if isinstance(n, ast.Constant)]
    return any(isinstance(n.value, float) for n in numbers)


def _share(part: list[Function] | list[ast.AST], whole: list[Function] | list[ast.AST]) -> str:
    return f"{100 * len(part) / max(1, len(whole)):.0f}"


if __name__ == "__main__":
    main([Path(text) for text in sys.argv[1:]] or [Path(__file__).resolve().parents[1]])
