"""Only ``methods`` and ``configs`` know a method by its name or by its settings model.

All others ask its settings: traits, a line for people, a threshold.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import pytest

from grace.settings.registry import BUILT_IN

SOURCE = Path(__file__).parents[2] / "src" / "grace"
NAMES = {str(model.model_fields["name"].default) for model in BUILT_IN}
WORDS = {"grace", "create"}
MODELS = {model.__name__ for model in BUILT_IN}
FILES = {
    path.relative_to(SOURCE).as_posix(): path
    for path in sorted(SOURCE.rglob("*"))
    if path.suffix in (".py", ".js", ".css", ".html")
    and path.relative_to(SOURCE).parts[0] not in ("methods", "configs")
}
# Whole texts that are a method's name and mean something else, and how often.
OTHER_MEANINGS: Mapping[tuple[str, str], int] = {
    ("cli/app.py", "grace"): 1,  # the program
    ("cli/compare.py", "grace"): 1,  # the program, in the command that is kept
    ("cli/study.py", "grace"): 1,  # likewise
    ("learner/card.py", "grace"): 1,  # the program, in the line that made the card
    ("learner/changeable.py", "probe"): 1,  # a section of settings
    ("learner/export.py", "grace"): 1,  # the program that wrote an ONNX file
    ("record/provenance.py", "grace"): 1,  # the package, among others and their versions
    ("storage/cache_folder.py", "grace"): 1,  # the program, in the user's cache
    ("studies/machine.py", "grace"): 1,  # the package, after python -m
    ("data/folders.py", "icarl"): 1,  # a list of ImageNet's classes, drawn with iCaRL's seed
}
# What help and refusals give as an example of what one may type.
EXAMPLES: Mapping[str, str] = {
    "cli/compare.py": "those of its preset: methods.der.grow.epochs=10.",
    "cli/learn_options.py": "Method, such as grace or der.",
    "cli/options.py": "then settings such as method=der, seed=2",
    "studies/cells.py": "name methods as grace,der",
}


def texts(tree: ast.Module) -> Iterator[str]:
    """Every text in a file that is no docstring; an f-string's fixed parts one by one."""
    documentation = {
        id(node.value)
        for owner in ast.walk(tree)
        if isinstance(owner, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for node in owner.body
        if isinstance(node, ast.Expr)
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in documentation:
            yield node.value


def identifiers(tree: ast.Module) -> Iterator[str]:
    """Every name that a file imports, reads or writes."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                yield name


def known_names(
    code: str, allowed: Mapping[str, int] | None = None, example: str | None = None
) -> Collection[str]:
    """What Python code knows of methods: texts that name one, settings models.

    "grace" is the program's name too and "create" a verb, so that only a text of nothing else
    counts; the names of the others may stand nowhere in a text.
    """
    tree = ast.parse(code)
    left = dict(allowed or {})
    found = [name for name in identifiers(tree) if name in MODELS]
    for text in texts(tree):
        if text in NAMES and left.get(text, 0) > 0:
            left[text] -= 1
            continue
        words = set(re.findall(r"\w+", text.replace(example, "") if example else text))
        if text in WORDS or words & (NAMES - WORDS | MODELS):
            found.append(text)
    return found + [f"'{text}' is listed here and absent" for text, count in left.items() if count]


@pytest.mark.parametrize("file", [name for name in FILES if name.endswith(".py")])
def test_no_other_room_names_a_method(file: str) -> None:
    allowed = {text: count for (place, text), count in OTHER_MEANINGS.items() if place == file}
    assert known_names(FILES[file].read_text(), allowed, EXAMPLES.get(file)) == []


@pytest.mark.parametrize("file", [name for name in FILES if not name.endswith(".py")])
def test_the_page_names_no_method(file: str) -> None:
    quoted = re.findall(r"[\"'`](\w+)[\"'`]", FILES[file].read_text())
    assert set(quoted) & NAMES == set()


@pytest.mark.parametrize("file", EXAMPLES)
def test_examples_are_where_they_are_said_to_be(file: str) -> None:
    assert any(EXAMPLES[file] in text for text in texts(ast.parse(FILES[file].read_text())))


@pytest.mark.parametrize(
    "code",
    [
        "if method.name == 'grace': pass",
        "match name:\n    case 'der' | 'memo': pass",
        "styles = {'wa': 'dot'}",
        "def f(kind: Literal['foster']): pass",
        "raise ValueError(f'{name}: use icarl or replay')",
        "from grace.settings.methods import GraceSettings",
        "import grace.settings.methods as m\nisinstance(x, m.MemoSettings)",
        "x = 'grace'\ny = ('grace', 'json')",
    ],
)
def test_the_test_finds_names(code: str) -> None:
    assert known_names(code)


@pytest.mark.parametrize(
    "code",
    [
        '"""As joint training and GRACE do."""',
        "def f():\n    '''Like der.'''",
        "hint = \"'grace learn' makes one\"",
        "from grace.methods.method import Method",
        "words = 'replays, derive, memory, await'",
    ],
)
def test_the_test_finds_no_more(code: str) -> None:
    assert known_names(code) == []
