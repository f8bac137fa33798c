"""Mutants: small wrong changes of the source, and whether the tests notice each of them.

Usage, in the root of a checkout whose environment runs its tests:

    python benchmarks/mutants.py map MAP                       which test runs which line
    python benchmarks/mutants.py run MAP RESULTS               draw mutants, test each of them
    python benchmarks/mutants.py again MAP RESULTS BASELINE    test a baseline's mutants again
    python benchmarks/mutants.py compare BASELINE RESULTS      kills of both, by room

Each mutant is written into the checkout and taken back: use a checkout that nobody else reads.
MAP, RESULTS and BASELINE are files of JSON lines. A stopped command goes on where it was.
"""

import argparse
import ast
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage
from hypothesis import Phase, settings

SOURCE = Path("src/grace")
PRELOADED = "torch torchvision numpy pydantic sklearn.datasets safetensors.torch PIL.Image"
LEFT_OUT = {"cli", "__init__.py", "__main__.py"}
TEMPORARY = f"{tempfile.gettempdir()}/mutants"
LIMIT = 20.0
"""Processor seconds of the tests that are chosen for one mutant."""
PAIRS = "Lt LtE, Gt GtE, Eq NotEq, Is IsNot, In NotIn, Add Sub, Mult Div, BitAnd BitOr, And Or"
SWAPS: dict[type, type] = {ast.Mod: ast.Mult, ast.FloorDiv: ast.Div, ast.Pow: ast.Mult}
for one, other in (pair.split() for pair in PAIRS.split(", ")):
    SWAPS |= {getattr(ast, one): getattr(ast, other), getattr(ast, other): getattr(ast, one)}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Mutant:
    """One change; named by what stays when its function moves to another file."""

    module: str
    function: str
    line: str
    old: str
    new: str
    number: int
    """which of several places of this function with the same three texts it is"""
    body: str
    """the function without docstring, so that it is known under another name"""

    @property
    def words(self) -> tuple[str, str, str, int]:
        """What tells it from others of the same function."""
        return (self.line, self.old, self.new, self.number)

    @property
    def key(self) -> tuple[str | int, ...]:
        """What tells it from all others."""
        return (self.module, self.function, *self.words)


@dataclass(frozen=True)
class Place:
    """Where a mutant is in a file: the bytes that it replaces, and their first line."""

    path: str
    line: int
    start: int
    end: int


def variants(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Every mutant that begins at one node: what is replaced, and by which text."""
    made: ast.expr | None = None
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield node.test, f"(not ({ast.unparse(node.test)}))"
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        made = ast.Compare(node.left, [SWAPS[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPS:
        made = ast.BinOp(node.left, SWAPS[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        made = ast.BoolOp(SWAPS[type(node.op)](), node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        made = node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        made = ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        made = ast.Constant(node.value + 1)
    elif isinstance(node, ast.Return) and node.value and not isinstance(node.value, ast.Constant):
        yield node, "return None"
    elif isinstance(node, ast.AugAssign | ast.Raise | ast.Continue | ast.Break | ast.Expr):
        yield node, "pass"
    if made is not None and isinstance(node, ast.expr):
        yield node, f"({ast.unparse(made)})"


def inside(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a function's own statements but texts, types and the words of errors."""
    typed = (getattr(node, "annotation", None), getattr(node, "returns", None))
    passed = (*typed, *getattr(node, "decorator_list", []))
    for child in ast.iter_child_nodes(node):
        left_out = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.arguments
        if child in passed or isinstance(child, left_out | ast.JoinedStr):
            continue
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        yield child
        if not isinstance(child, ast.Raise):
            yield from inside(child)


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    """Every function of a file with its qualified name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield prefix + node.name, node
        if isinstance(node, Function | ast.ClassDef):
            yield from functions(node, f"{prefix}{node.name}.")


def normalised(function: Function) -> str:
    """Return a fingerprint of a function's statements without its name, docstring and types."""
    held = function.body[ast.get_docstring(function) is not None :]
    return format(hash_of("\n".join(ast.unparse(one) for one in held)), "x")


def hash_of(text: str) -> int:
    """Return a number that is the same in every process."""
    return int.from_bytes(text.encode(), "big") % (2**61 - 1)


def mutants(path: Path) -> Iterator[tuple[Mutant, Place]]:
    """Every mutant of one file."""
    data = path.read_bytes()
    lines = data.splitlines(keepends=True)
    starts = [sum(len(line) for line in lines[:number]) for number in range(len(lines) + 1)]
    seen: Counter[tuple[str, ...]] = Counter()
    for name, function in functions(ast.parse(data)):
        body = normalised(function)
        for at, new in (found for one in inside(function) for found in variants(one)):
            start = starts[at.lineno - 1] + at.col_offset
            end = starts[(at.end_lineno or 0) - 1] + (at.end_col_offset or 0)
            words = (name, lines[at.lineno - 1].decode().strip(), data[start:end].decode())
            number = seen[(*words, new)]
            seen[(*words, new)] += 1
            mutant = Mutant(str(path.relative_to(SOURCE)), *words, new, number, body)
            yield mutant, Place(mutant.module, at.lineno, start, end)


class Watcher:
    """Pytest's plugin: tells the coverage which test runs, and keeps what each one cost."""

    def __init__(self) -> None:
        self.coverage = Coverage(None, include=[f"{SOURCE.resolve()}/*"], config_file=False)
        self.cost: dict[str, float] = {}
        self.failed: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Begin a test."""
        self.cost[nodeid] = -sum(os.times()[:4])
        self.coverage.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep which tests did not pass: they tell nothing."""
        if report.outcome != "passed":
            self.failed.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """End a test."""
        self.cost[nodeid] += sum(os.times()[:4])


def run_pytest(words: list[str], seconds: float, watchers: Sequence[Watcher] = ()) -> int:
    """Run tests in this process, a child, with limits on its time and memory."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    fixed = ["-q", "-n", "0", "-o", "timeout=0", "-p", "no:cacheprovider", "--tb=short"]
    fixed += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis was preloaded
    fixed += [f"--basetemp={TEMPORARY}-{os.getpid()}"]
    return int(pytest.main([*fixed, *words], plugins=watchers))


def in_child(work: Callable[[], int], seconds: float) -> str:
    """Do something in a fork of this process; return in one word how it ended."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            status = work()
        finally:
            os._exit(status)
    ends, held = time.monotonic() + 20 * seconds + 60, None
    while held is None and time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        held = status if done else None
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what the tests started and did not end
    if held is None:
        os.waitpid(child, 0)
    shutil.rmtree(f"{TEMPORARY}-{child}", ignore_errors=True)
    if held is None or os.WIFSIGNALED(held):
        return "time"
    return {0: "survived", 1: "killed"}.get(os.WEXITSTATUS(held), "broken")


def read(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines; one that does not exist yet has none."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines() if line.endswith("}")]


def append(path: Path, row: dict[str, Any]) -> None:
    """Add one line to a file."""
    with path.open("a") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def write_map(out: Path) -> None:
    """Run each file of tests once; keep the cost of its tests and the lines that each one runs."""
    done = {row["file"] for row in read(out)}
    for path in sorted(Path("tests").rglob("test_*.py")):
        if str(path) not in done and "architecture" not in path.parts:
            print(path, in_child(partial(map_file, str(path), out), 3600), flush=True)


def map_file(name: str, out: Path) -> int:
    """Run one file of tests in this process and append what it covers."""
    watcher = Watcher()
    watcher.coverage.start()
    status = run_pytest([name], 3600, [watcher])
    watcher.coverage.stop()
    data, passed = watcher.coverage.get_data(), watcher.cost.keys() - watcher.failed
    lines: dict[str, dict[str, int]] = defaultdict(dict)
    for path in data.measured_files():
        for line, tests in data.contexts_by_lineno(path).items():
            for test in set(tests) & passed:
                module = str(Path(path).relative_to(SOURCE.resolve()))
                lines[test][module] = lines[test].get(module, 0) | 1 << line
    row: dict[str, Any] = {"file": name, "status": status, "tests": {}}
    for test, held in lines.items():
        bits = {module: f"{number:x}" for module, number in held.items()}
        row["tests"][test] = [round(watcher.cost[test], 2), bits]
    append(out, row)
    return 0


def chosen(rows: list[dict[str, Any]], place: Place) -> tuple[list[str], float]:
    """Return tests that may notice a change, the quickest first, and their seconds.

    Those that run the line come first, then others of the same files, which may use what a test
    before them made.
    """
    ranked: list[tuple[bool, float, str]] = []
    for row in rows:
        apart = {
            test: not int(held.get(place.path, "0"), 16) >> place.line & 1
            for test, (_, held) in row["tests"].items()
        }
        if not all(apart.values()):
            ranked += [(apart[test], cost, test) for test, (cost, _) in row["tests"].items()]
    kept: list[str] = []
    seconds = 0.0
    for _, cost, test in sorted(ranked):
        if not kept or seconds + cost <= LIMIT:
            kept, seconds = [*kept, test], seconds + cost
    return kept, seconds


def drawn(number: int, seed: int) -> list[tuple[Mutant, Place]]:
    """Draw mutants evenly over modules, in an order in which every beginning is even too."""
    draws = random.Random(seed)  # noqa: S311
    paths = [path for path in sorted(SOURCE.rglob("*.py")) if not LEFT_OUT & set(path.parts)]
    held = [draws.sample(found, len(found)) for path in paths if (found := list(mutants(path)))]
    kept: list[tuple[Mutant, Place]] = []
    for turn in range(max(map(len, held))):
        kept += draws.sample(now := [one[turn] for one in held if turn < len(one)], len(now))
    return kept[:number]


def found_again(rows: list[dict[str, Any]]) -> Iterator[tuple[Mutant, Place]]:
    """Find mutants of another checkout here: in a function of the same statements or name."""
    here: dict[tuple[Any, ...], list[tuple[str, Place]]] = defaultdict(list)
    for mutant, place in (one for path in sorted(SOURCE.rglob("*.py")) for one in mutants(path)):
        for name in (mutant.body, mutant.function.rpartition(".")[2]):
            here[name, *mutant.words].append((Path(mutant.module).name, place))
    for row in rows:
        wanted = Mutant(**row["mutant"])
        name = wanted.function.rpartition(".")[2]
        if same := here[wanted.body, *wanted.words] or here[name, *wanted.words]:
            # Of several, the one in a file of the same name.
            yield wanted, min(same, key=lambda one: one[0] != Path(wanted.module).name)[1]


def test_all(wanted: list[tuple[Mutant, Place]], covering: Path, out: Path) -> None:
    """Test each mutant that has no result yet and append it."""
    done, rows = {Mutant(**row["mutant"]).key for row in read(out)}, read(covering)
    for mutant, place in wanted:
        if mutant.key in done:
            continue
        tests, seconds = chosen(rows, place)
        start, result = time.monotonic(), "uncovered"
        if tests:
            result = tested(place, mutant.new, tests, 3 * seconds + 30)
        took = round(time.monotonic() - start, 1)
        append(out, {"mutant": asdict(mutant), "result": result, "tests": len(tests), "took": took})


def tested(place: Place, new: str, tests: list[str], seconds: float) -> str:
    """Write a mutant into its file, run tests in a fork, and take it back."""
    path = SOURCE / place.path
    data, before = path.read_bytes(), path.stat()
    work = partial(run_pytest, ["-x", "--hypothesis-seed=0", *tests], seconds)
    try:
        path.write_bytes(data[: place.start] + new.encode() + data[place.end :])
        os.utime(path, (time.time(), random.uniform(1e9, 1.5e9)))  # noqa: S311  no stale .pyc
        result = in_child(work, seconds)
    finally:
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    # Where the tests do not even begin, that may be the mutant's doing or their own.
    return "killed" if result == "broken" and in_child(work, seconds) == "survived" else result


def compare(baseline: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
    """Print how many mutants were killed before and after, by room of the baseline."""
    after = {Mutant(**row["mutant"]).key: row["result"] in ("killed", "time") for row in results}
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for row in baseline:
        mutant, killed = Mutant(**row["mutant"]), row["result"] in ("killed", "time")
        for room in (mutant.module.partition("/")[0], "all"):
            held = mutant.key in after
            rooms[room].update(drawn=1, found=held, old=held and killed)
            rooms[room].update(new=held and after[mutant.key])
        if killed and not after.get(mutant.key, True):
            print(f"no longer killed: {mutant.module} {mutant.function}: {mutant.line}")
    print(f"{'room':<12}{'drawn':>7}{'found':>7}{'killed before':>15}{'after':>7}")
    for room, n in sorted(rooms.items()):
        print(f"{room:<12}{n['drawn']:>7}{n['found']:>7}{n['old']:>15}{n['new']:>7}")


def main() -> None:
    """Do what the first word says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("verb", choices=("map", "run", "again", "compare"))
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--number", type=int, default=600)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    files: list[Path] = [path.resolve() for path in given.files]
    if given.verb == "compare":
        compare(read(files[0]), read(files[1]))
        return
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    os.environ["OMP_NUM_THREADS"] = "1"
    for name in PRELOADED.split():
        import_module(name)
    phases = (Phase.explicit, Phase.generate)  # a failure is enough; it need not be small
    settings.register_profile("mutants", phases=phases, database=None, derandomize=True)
    settings.load_profile("mutants")
    if given.verb == "map":
        write_map(files[0])
        return
    if given.verb == "again":
        test_all(list(found_again(read(files[2]))), files[0], files[1])
    else:
        test_all(drawn(given.number, given.seed), files[0], files[1])


if __name__ == "__main__":
    main()
