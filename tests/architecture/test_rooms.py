"""The shape of the package: rooms import downwards, never in a circle, with one epoch loop."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "grace"
# From the top of the house to its cellar; a room may import rooms of the floors below it.
ROOMS = (
    ("__main__",),
    ("cli",),
    ("studies",),
    ("runs", "learner"),
    ("methods",),
    ("engine",),
    ("nn", "data"),
    ("settings",),
    ("base",),
)
FLOORS = {room: number for number, rooms in enumerate(ROOMS) for room in rooms}
MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}


def imports(path: Path) -> Iterator[str]:
    """Every module of the package that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names = [
                full if (full := f"{module}.{alias.name}") in MODULES else module
                for alias in node.names
            ]
        else:
            continue
        yield from (name for name in names if name in MODULES and name != "grace")


def room(module: str) -> str:
    return module.split(".")[1]


def test_every_room_has_its_place() -> None:
    assert {room(module) for module in MODULES if module != "grace"} == set(FLOORS)


def test_imports_go_down() -> None:
    upwards = [
        f"{module} imports {name}"
        for module, path in MODULES.items()
        if module != "grace"
        for name in imports(path)
        if room(name) != room(module) and FLOORS[room(name)] <= FLOORS[room(module)]
    ]
    assert upwards == []


def test_no_import_cycle() -> None:
    graph = {module: set(imports(path)) - {module} for module, path in MODULES.items()}
    while leaves := [module for module, needs in graph.items() if not needs & graph.keys()]:
        for module in leaves:
            del graph[module]
    assert graph == {}


def test_one_epoch_loop() -> None:
    def using(pattern: str) -> list[str]:
        return [
            module
            for module, path in MODULES.items()
            for line in path.read_text().splitlines()
            if re.search(pattern, line) and not line.lstrip().startswith(("def ", '"""', "#"))
        ]

    assert using(r"learning_rates\(") == ["grace.engine.trainer"]
    # One place differentiates: an optimiser's step and a gradient sweep share it.
    assert using(r"\.backward\(") == ["grace.engine.forward_backward"]
    assert set(using(r"\.step\(")) == {"grace.engine.phase_run"}


def classes() -> dict[str, ast.ClassDef]:
    trees = (ast.parse(path.read_text()) for path in MODULES.values())
    return {n.name: n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ClassDef)}


def stored(function: ast.FunctionDef) -> set[str]:
    """Names of the attributes of self that a method assigns."""
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def born(cls: ast.ClassDef, known: dict[str, ast.ClassDef]) -> set[str]:
    """Names of what a class body, its constructor or its bases bring into the world."""
    names: set[str] = set()
    for node in cls.body:
        if isinstance(node, ast.FunctionDef):
            names |= {node.name} | (stored(node) if node.name == "__init__" else set())
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    for base in cls.bases:
        name = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(name, ast.Name) and name.id in known:
            names |= born(known[name.id], known)
    return names


def test_fields_are_born_in_the_constructor_or_the_class() -> None:
    known = classes()
    late = [
        f"{cls.name}.{name}"
        for cls in known.values()
        for function in cls.body
        if isinstance(function, ast.FunctionDef)
        for name in sorted(stored(function) - born(cls, known))
    ]
    assert late == []


def test_starts_without_torch() -> None:
    """One process for all: what the first of them imported would be there for the last, too."""
    steps = [
        "import grace",
        "import grace.cli, grace.data.sources",
        "import grace.runs.record, grace.studies.report, grace.studies.table",
        "from grace.studies import claims, figures, measures, paper, pareto, plan, study",
        "import grace.base.lock, grace.base.atomic, grace.base.strict_json",
        "import grace.learner.prediction, grace.learner.exported",
        "from grace.settings.load import load_experiment; load_experiment('digits')",
        "from grace.settings.registry import METHODS; [m.settings() for m in METHODS.values()]",
        "grace.load_experiment, grace.GraceError, grace.RunRecord, grace.run, grace.StudyResult",
    ]
    lines = (f"{step}\nassert 'torch' not in sys.modules, {step!r}\n" for step in steps)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{''.join(lines)}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
