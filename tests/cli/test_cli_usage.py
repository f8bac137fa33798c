"""Help, wrong usage, errors, and the verbs list, show and run."""

import inspect
import os
import re
import resource
import subprocess
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
import yaml

import grace
from grace.base.errors import GraceError
from grace.cli.app import FUNCTIONS, MODULES, VERBS
from grace.cli.console import one_line_errors, one_line_warnings
from grace.runs.model import RunRecord
from grace.settings.load import ConfigWarning, load_experiment
from grace.settings.registry import METHODS
from support import one_process
from support.commands import call, ran
from support.picture_folders import folder
from support.synthetic_records import MakeRecord


@pytest.fixture
def fake_run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[Any]]:
    """Put a run that trains nothing in place of the real one."""

    def install(behaviour: Callable[..., RunRecord]) -> list[Any]:
        calls: list[Any] = []

        def run_experiment(settings: Any, *, progress: Any = None, **more: Any) -> RunRecord:
            calls.append((settings, progress, more))
            return behaviour(progress)

        monkeypatch.setattr("grace.cli.run.run_experiment", run_experiment)
        return calls

    return install


def ended(error: BaseException) -> Callable[[Any], RunRecord]:
    def fail(_progress: Any) -> RunRecord:
        raise error

    return fail


def test_the_package_is_the_command() -> None:
    command = [sys.executable, "-m", "grace", "--version"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"grace {grace.__version__}\n")
    assert "Usage: grace" in call().output
    assert "Traceback" in ran("--traceback", "run", "digitz", code=2).stderr


def test_nothing_heavy_is_imported_where_it_is_not_needed() -> None:
    pages = [["--help"], *([name, "--help"] for name in VERBS)]
    wrong = "digitz", "memory.size=-1", "backbone.name=resnt20", "backbone.weights=x.safetensors"
    short = [["list"], ["show", "digits"], *(["run", word] for word in wrong)]
    short += [["run", "folder", "data.root=x"], ["export", "x"], ["predict", "x", "x.png"]]
    ends = one_process.calls(*pages, *short, without=["torch", "torchvision", "numpy", "PIL"])
    assert [end.exit_code for end in ends] == [0] * len(pages) + [0, 0] + [2] * 7
    assert all("Usage: grace" in end.stdout for end in ends[: len(pages)])


def test_the_help_says_of_every_verb_what_its_docstring_says() -> None:
    shown = " ".join(re.sub("[│\n]", " ", call("--help").stdout).split())
    for name, line in VERBS.items():
        function = getattr(import_module(f"grace.cli.{MODULES[name]}"), FUNCTIONS.get(name, name))
        if name != "doctor":  # It is learn --dry-run.
            assert line == (inspect.getdoc(function) or "").splitlines()[0]
        assert f"{name} {line}" in shown


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("predit", ["predit", "predict"]),
        ("no\nverb", ["no\\nverb"]),
        ("--verson", ["--verson", "--version"]),
        ("learn --modl=m", ["--modl", "--model", "grace learn -h"]),
        ("learn images", ["--model"]),
        ("learn images --model=m --max-drop=101", ["--max-drop", "100"]),
        ("learn images --model=m --max-disk-mb=-1", ["--max-disk-mb", "0"]),
        ("info m n", ["grace info -h"]),
        ("rollback m x", ["VERSION"]),
        ("predict m images --top=0", ["--top", "1"]),
        ("evaluate m images --min-accuracy=101", ["--min-accuracy", "100"]),
        ("list methodz", ["'methodz' is not one of"]),
        ("run digitz", ["did you mean 'digits'?"]),
        ("run digits cifar10", ["'cifar10' is no setting"]),
        ("run method.treshold=1", ["did you mean 'method.threshold'?"]),
        ("run memory.size=-1 method.gamma=-1", ["2 settings are wrong"]),
        ("run --out images", ["images exists already: choose another --out"]),
        ("show absent.yaml", ["no such file"]),
        ("prune images", ["what shall stay? give either --keep or --max-disk-mb"]),
        ("info images", ["is no learner"]),
        *((command, ["error: 'nobody' does not exist: check the spelling\n"]) for command in (
            "predict nobody images", "evaluate nobody images", "info nobody", "history nobody",
            "export nobody", "rollback nobody 1", "forget nobody ant", "set nobody",
            "prune nobody --keep=1", "learn --model=nobody --discard", "doctor nobody",
            "report nobody",
        )),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_line_and_changes_nothing(
    command: str, names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "images", "ant", "bee", count=1)
    result = call(*command.split(" "))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert all(name in result.stderr for name in names), result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (GraceError("x " * 25_000_000, "set a=1"), "error: x x"),
        (OSError("y" * 50_000_000), "error: yyy"),
        (FileNotFoundError(2, "No such file or directory", "a\nb"), "error: a b: no such file"),
        (MemoryError(), "error: there is not enough memory: "),
        (ImportError("libtorch.so: failed to map segment"), "error: there is not enough memory: "),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "error: there is not enough"),
        (ValueError("a bug"), None),
        (RuntimeError("a bug"), None),
        (ImportError("no x"), None),
    ],
)
def test_an_error_of_a_user_is_one_short_line_and_a_bug_keeps_its_traceback(
    error: Exception, shown: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit if shown else type(error)) as raised, one_line_errors():
        raise error
    text = capsys.readouterr().err
    assert text.startswith(shown or "")
    assert text.count("\n") == (shown is not None)
    assert len(text) < 12_000
    assert not shown or raised.value.exit_code == 2


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the address space")
def test_too_little_memory_for_a_library_is_one_line() -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20))

    command = [sys.executable, "-m", "grace", "run", "digits"]
    done = subprocess.run(command, preexec_fn=limit, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_warnings_are_told_before_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        warnings.warn("mind this", ConfigWarning, stacklevel=1)
        warnings.warn("and that", UserWarning, stacklevel=1)
        raise ValueError("in vain")

    with (
        pytest.warns(UserWarning, match="and that"),
        pytest.raises(ValueError, match="in vain"),
        one_line_warnings(),
    ):
        fail()
    assert capsys.readouterr().err == "warning: mind this\n"
    result = ran("show", "method=finetune", "memory.size=7", "--yaml")
    assert result.stderr == "warning: memory.size has no effect: finetune keeps no exemplars\n"


def test_list() -> None:
    everything = ran("list").stdout
    for word in ("experiments", "cifar100-b0i5", "methods", "finetune", "datasets", "folder"):
        assert word in everything
    lines = ran("list", "methods").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(METHODS)


def test_show_marks_what_differs_and_yaml_loads_back(tmp_path: Path) -> None:
    shown = ran("show", "cifar100-b0i5", "method.gamma=4").stdout.splitlines()
    lines = {line[3:].split()[0]: line for line in shown if line[3:].strip()}
    assert lines["method.gamma"].startswith("*")
    assert lines["method.temperature"].startswith(" ")
    assert "γ" in lines["method.gamma"]
    text = ran("show", "digits", "method=der", "seed=5", "--yaml").stdout
    (tmp_path / "mine.yaml").write_text(text)
    mine = load_experiment(str(tmp_path / "mine.yaml"))
    assert mine == load_experiment("digits", ["method=der", "seed=5"])
    # No mark that turns the direction of text is printed as it is.
    text = ran("show", "digits", "description=a\u202eb", "--yaml").stdout
    assert "\u202e" not in text
    assert yaml.safe_load(text)["description"] == "a\u202eb"


def test_run_passes_settings_on_and_sums_up(
    make_record: MakeRecord, fake_run: Callable[[Any], list[Any]], tmp_path: Path
) -> None:
    record = make_record("grace", 1)

    def learn(progress: Any) -> RunRecord:
        for task in record.tasks:
            progress.task_started(task.task, 5, task.class_names_new)
            progress.task_finished(task)
        return record

    calls = fake_run(learn)
    lines = ran("run", "method=der", "seed=2", "--out", tmp_path / "out").stdout.splitlines()
    ((settings, _, more),) = calls
    assert (settings.name, settings.method.name, settings.seeds.data) == ("digits", "der", 2)
    assert (more["directory"], more["resume"]) == (tmp_path / "out", False)
    rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
    last = record.tasks[-1]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5"]
    assert rows[-1][1] == f"{last.classifiers['linear'].all:.1f}"
    assert rows[-1][4:6] == [f"{last.saturation:.3f}/{last.threshold:.3f}", last.verdict]
    page = record.directory / "report.html"
    assert lines[-2:] == [f"record  {record.directory}", f"report  {page}"]
    assert any(line.startswith(f"Last {record.last:.2f} %   Avg ") for line in lines)
    page.unlink()
    ran("run", "--no-report")
    assert not page.exists()


def test_an_interrupted_run_says_where_its_record_is_and_how_to_go_on(
    fake_run: Callable[[Any], list[Any]],
) -> None:
    error = KeyboardInterrupt()
    fake_run(ended(error))
    assert ran("run", code=130).stderr == "interrupted\n"
    error.add_note("the record of the tasks so far: runs/x")
    lines = ran("run", code=130).stderr.splitlines()
    assert lines[1:] == ["the record of the tasks so far: runs/x", "add --resume to continue"]
    fake_run(ended(AssertionError("ours")))
    with pytest.raises(AssertionError, match="ours"):
        call("run")


def test_report_and_tables(
    make_record: MakeRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record = make_record("grace", 1)
    make_record("der", 1)
    ran("report", "runs")
    one = ran("report", record.directory, "-o", "one.html")
    assert one.stdout.endswith("report of 1 run: one.html\n")
    assert (tmp_path / "one.html").is_file()
    (tmp_path / "report.html").unlink()
    assert "\\toprule" in ran("report", "runs", "--table", "latex").stdout
    numbers = ran("report", "runs", "--table", "csv").stdout
    assert numbers.startswith("protocol,experiment,row,metric")
    assert not (tmp_path / "report.html").exists()
    (record.directory / "run.json").write_text("{")
    left = ran("report", "runs", "--table", "csv")
    assert left.stderr.startswith("warning: left out: ")
    assert left.stdout.count("\n") < numbers.count("\n") / 2 + 1
    (tmp_path / "thesis.html").write_text("mine")
    assert "thesis.html" in ran("report", "runs", "--out", "thesis.html", code=2).stderr
    ran("report", "runs", "--output", "new.html")


@pytest.mark.parametrize("rank", [0, 1])
def test_several_processes(
    rank: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_record: MakeRecord,
    fake_run: Callable[[Any], list[Any]],
) -> None:
    for name, value in (("WORLD_SIZE", 2), ("RANK", rank), ("LOCAL_RANK", rank)):
        monkeypatch.setenv(name, str(value))
    start = "error (process 1): " if rank else "error: "
    for verb in (["learn", "--model", "pets", "images"], ["predict", "pets"]):
        assert ran(*verb, code=2).stderr == (
            f"{start}grace {verb[0]} works in one process: start it without torchrun, which is for "
            "grace run\n"
        )
    assert ran("run", "digits", "seed=one", code=2).stderr.startswith(start)
    # The first one may have made the directory a moment ago: it alone refuses one that exists.
    calls = fake_run(lambda _progress: make_record("grace", 1))
    result = ran("run", "digits", "--out", tmp_path, code=0 if rank else 2)
    assert len(calls) == rank
    assert "exists already" in result.stderr or result.output == ""


OPENMP = next((Path(torch.__file__).parent / "lib").glob("libgomp*"), None)
PROGRAM = """
import ctypes, sys
from grace.cli import app
app.app = lambda: None
app.main()
ctypes.CDLL(sys.argv[1])
"""


@pytest.mark.skipif(OPENMP is None, reason="this torch brings no GNU OpenMP")
@pytest.mark.parametrize(
    ("given", "expected"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "500"}, "500"), ({"OMP_WAIT_POLICY": "PASSIVE"}, "0")],
)
def test_threads_that_wait_soon_sleep_unless_the_user_says_otherwise(
    given: dict[str, str], expected: str
) -> None:
    ours = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    asked = {"OMP_DISPLAY_ENV": "VERBOSE", "OMP_NUM_THREADS": "1"}  # OpenMP itself answers.
    command = [sys.executable, "-c", PROGRAM, str(OPENMP)]
    done = subprocess.run(command, env={**kept, **asked, **given}, capture_output=True, text=True)
    assert f"GOMP_SPINCOUNT = '{expected}'" in done.stderr
