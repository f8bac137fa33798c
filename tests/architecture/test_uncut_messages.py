"""Messages are for people: no code takes one apart to learn what went wrong, or to reword it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "grace"
CUTS = {
    "endswith", "find", "index", "lstrip", "partition", "removeprefix", "removesuffix", "replace",
    "rfind", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip",
}  # fmt: skip
"""Methods that take a text apart or look into it."""
PATTERNS = {"findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn"}
"""Functions of ``re`` that do."""
SPEAKING = re.compile(
    r"(^|_)(error|err|exc|exception|refusal|problem|message|msg|complaint|warning)s?$"
)
"""Names that a message, or what holds one, goes by."""
ALLOWED = {
    "cli/errors.py": 1,  # torch has no type for a failed allocation on the CPU, only a text
    "text/escaping.py": 1,  # the first line of another library's error, which may have a page
}
"""Lines of each file that take a message apart."""


def names_in(node: ast.AST) -> Iterator[str]:
    """Every name and attribute of an expression, and the keys that it looks up."""
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr
        elif isinstance(inner, ast.Subscript) and isinstance(inner.slice, ast.Constant):
            yield str(inner.slice.value)


def spoken_names(function: ast.AST) -> set[str]:
    """Names that hold a message by what is assigned to them, or by the error that they are."""
    found = {
        node.name
        for node in ast.walk(function)
        if isinstance(node, ast.ExceptHandler) and node.name
    }
    while True:
        more = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and speaks(node.value, found)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        if more <= found:
            return found
        found |= more


def speaks(node: ast.AST, spoken: set[str]) -> bool:
    """Whether an expression is the text of an error, or made from one."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id != "str":
        return False  # What another function makes of an error is its own affair.
    return any(name in spoken or SPEAKING.search(name) for name in names_in(node))


def is_whitespace_only(call: ast.Call) -> bool:
    """``split()`` and ``strip()`` without arguments only tidy white space."""
    return not call.args and isinstance(call.func, ast.Attribute) and call.func.attr != "splitlines"


def looks_into(node: ast.AST, spoken: set[str]) -> bool:
    """``"a" in str(error)`` asks a message what went wrong."""
    return isinstance(node, ast.Compare) and any(
        isinstance(operator, ast.In | ast.NotIn)
        and isinstance(side, ast.Call)
        and isinstance(side.func, ast.Name)
        and side.func.id == "str"
        and any(speaks(argument, spoken) for argument in side.args)
        for operator, side in zip(node.ops, node.comparators, strict=True)
    )


def cuts(tree: ast.AST) -> Iterator[ast.Call | ast.Compare]:
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        spoken = spoken_names(function)
        for call in ast.walk(function):
            if isinstance(call, ast.Compare) and looks_into(call, spoken):
                yield call
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
                continue
            of, name = call.func.value, call.func.attr
            if isinstance(of, ast.Name) and of.id == "re" and name in PATTERNS:
                if any(speaks(argument, spoken) for argument in call.args[1:]):
                    yield call
            elif name in CUTS and not is_whitespace_only(call) and speaks(of, spoken):
                yield call


def found_in(text: str) -> list[int]:
    return sorted({call.lineno for call in cuts(ast.parse(text))})


def test_no_message_is_taken_apart() -> None:
    found = {
        str(path.relative_to(SOURCE)): len(lines)
        for path in sorted(SOURCE.rglob("*.py"))
        if (lines := found_in(path.read_text()))
    }
    assert found == ALLOWED


def test_what_is_found() -> None:
    taken_apart = """
def one(error):
    return str(error).removesuffix(", or set it")

def two():
    try:
        pass
    except ValueError as wrong:
        text = f"no: {wrong}"
        return text.rpartition(": ")[0]

def three(detail):
    return detail["msg"].removeprefix("Value error, ")

def four(problems):
    return re.sub("a", "b", problems[0])

def five(error):
    return str(error).startswith("no space")

def six(error):
    return "no space" in str(error)
"""
    assert found_in(taken_apart) == [3, 10, 13, 16, 19, 22]
    left_whole = """
def one(error):
    return " ".join(str(error).split())

def two(path):
    return path.removesuffix(".json").partition(":")

def three(error):
    return printable(f"{error}").strip("x")
"""
    assert found_in(left_whole) == []
