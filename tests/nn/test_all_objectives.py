"""Every loss is called by a test beside this."""

import ast
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

from grace.nn.losses import classification

FOLDER = Path(classification.__file__).parent
MODULES = [
    import_module(f"grace.nn.losses.{path.stem}") for path in sorted(FOLDER.glob("[!_]*.py"))
]


def functions(module: ModuleType) -> list[str]:
    tree = ast.parse(Path(str(module.__file__)).read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in names if not name.startswith("_")]


def test_every_function_is_called_by_a_test_here() -> None:
    here = Path(__file__)
    tests = "".join(path.read_text() for path in here.parent.glob("*.py") if path != here)
    public = [name for module in MODULES for name in functions(module)]
    assert public
    assert [name for name in public if not re.search(rf"\b{name}\(", tests)] == []
