import inspect
import re
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

import grace
from grace.base.errors import GraceError
from grace.cli.app import FUNCTIONS, MODULES, VERBS
from grace.cli.console import one_line_warnings
from grace.runs.model import RunRecord
from grace.settings.load import ConfigWarning, load_experiment
from grace.settings.registry import METHODS
from support import one_process
from support.commands import call
from support.picture_folders import folder
from support.synthetic_records import MakeRecord


@pytest.fixture
def fake_experiment(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[Any]]:
    """Put a run that trains nothing in place of the real one."""

    def install(behaviour: Callable[..., RunRecord]) -> list[Any]:
        calls: list[Any] = []

        def run_experiment(
            settings: Any,
            *,
            directory: Path | None,
            progress: Any,
            resume: bool,
            first_tasks: Path | None,
            keep: bool,
        ) -> RunRecord:
            assert not resume
            assert first_tasks is None
            calls.append((settings, directory))
            return behaviour(progress)

        monkeypatch.setattr("grace.cli.run.run_experiment", run_experiment)
        return calls

    return install


def test_version() -> None:
    result = call("--version")
    assert (result.exit_code, result.stdout) == (0, f"grace {grace.__version__}\n")


def test_nothing_heavy_is_imported_where_it_is_not_needed() -> None:
    pages = [["--help"], *([name, "--help"] for name in VERBS)]
    short = [["list"], ["show", "digits"], ["run", "digitz"], ["run", "memory.size=-1"]]
    heavy = ["torch", "torchvision", "plotly", "numpy"]
    ends = one_process.calls(*pages, *short, without=heavy)
    assert [end.exit_code for end in ends] == [0] * len(pages) + [0, 0, 2, 2]
    assert all("Usage: grace" in end.stdout for end in ends[: len(pages)])


@pytest.mark.parametrize("name", VERBS)
def test_the_help_says_of_every_verb_what_its_docstring_says(name: str) -> None:
    module = import_module(f"grace.cli.{MODULES[name]}")
    documented = inspect.getdoc(getattr(module, FUNCTIONS.get(name, name))) or ""
    if name != "doctor":  # It is learn --dry-run.
        assert VERBS[name] == documented.splitlines()[0]
    shown = " ".join(re.sub("[│\n]", " ", call("--help").stdout).split())
    assert f"{name} {VERBS[name]}" in shown


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["predit"], ["predit", "predict"]),
        (["no\nverb"], ["no\\nverb"]),
        (["--verson"], ["--verson", "--version"]),
        (["learn", "--modl=m"], ["--modl", "--model", "grace learn -h"]),
        (["learn", "images"], ["--model"]),
        (["learn", "images", "--model=m", "--max-drop=101"], ["--max-drop", "100"]),
        (["learn", "images", "--model=m", "--max-disk-mb=-1"], ["--max-disk-mb", "0"]),
        (["info", "m", "n"], ["grace info -h"]),
        (["rollback", "m", "x"], ["VERSION"]),
        (["predict", "m", "images", "--top=0"], ["--top", "1"]),
        (["evaluate", "m", "images", "--min-accuracy=101"], ["--min-accuracy", "100"]),
    ],
)
def test_wrong_usage_is_one_plain_line(arguments: list[str], names: list[str]) -> None:
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert all(name in result.stderr for name in names), result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "nobody", "images"],
        ["evaluate", "nobody", "images"],
        ["info", "nobody"],
        ["history", "nobody"],
        ["export", "nobody"],
        ["rollback", "nobody", "1"],
        ["forget", "nobody", "ant"],
        ["set", "nobody"],
        ["prune", "nobody", "--keep=1"],
        ["learn", "--model=nobody", "--discard"],
        ["doctor", "nobody"],
        ["report", "nobody"],
    ],
)
def test_a_path_that_does_not_exist_is_said_to_be_absent(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder(tmp_path / "images", "ant", "bee", count=1)
    result = call(*arguments)
    assert result.exit_code == 2
    assert result.stderr == "error: 'nobody' does not exist: check the spelling\n"
    assert [path.name for path in tmp_path.iterdir()] == ["images"]


def test_without_arguments_the_help_is_shown() -> None:
    assert "Usage: grace" in call().output


def test_list() -> None:
    everything = call("list")
    assert everything.exit_code == 0
    for word in ("experiments", "cifar100-b0i5", "methods", "finetune", "datasets", "folder"):
        assert word in everything.stdout
    methods = call("list", "methods").stdout.splitlines()
    assert [line.split()[0] for line in methods] == list(METHODS)
    assert call("list", "methodz").exit_code == 2


def test_show_marks_what_differs_and_tells_meanings() -> None:
    result = call("show", "cifar100-b0i5", "method.gamma=4")
    assert result.exit_code == 0
    lines = {line[3:].split()[0]: line for line in result.stdout.splitlines() if line[3:].strip()}
    assert lines["method.gamma"].startswith("*")
    assert lines["method.temperature"].startswith(" ")
    assert "γ" in lines["method.gamma"]


def test_show_yaml_loads_back(tmp_path: Path) -> None:
    result = call("show", "digits", "method=der", "seed=5", "--yaml")
    assert result.exit_code == 0
    path = tmp_path / "mine.yaml"
    path.write_text(result.stdout)
    assert yaml.safe_load(result.stdout)["memory"]["size"] == 100
    assert load_experiment(str(path)) == load_experiment("digits", ["method=der", "seed=5"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "digitz"], "did you mean 'digits'?"),
        (["run", "digits", "cifar10"], "'cifar10' is no setting"),
        (["run", "method.treshold=1"], "did you mean 'method.threshold'?"),
        (["run", "memory.size=-1", "method.gamma=-1"], "2 settings are wrong"),
        (["show", "absent.yaml"], "no such file"),
        (["report", "nowhere"], "'nowhere' does not exist"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert says in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_traceback_on_request() -> None:
    result = call("--traceback", "run", "digitz")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert "Traceback" not in call("run", "digitz").stderr


def test_a_setting_without_effect_is_a_warning() -> None:
    result = call("show", "method=finetune", "memory.size=7", "--yaml")
    assert result.exit_code == 0
    assert result.stderr == "warning: memory.size has no effect: finetune keeps no exemplars\n"


def test_run_passes_settings_on_and_sums_up(
    make_record: MakeRecord, fake_experiment: Callable[[Any], list[Any]], tmp_path: Path
) -> None:
    record = make_record("grace", 1)

    def learn(progress: Any) -> RunRecord:
        for task in record.tasks:
            progress.task_started(task.task, 5, task.class_names_new)
            progress.phase_started("grow", 1, 300)
            progress.epoch_finished("grow", 1, 1, {"classification": 0.5}, 0.1)
            progress.phase_finished("grow", 0.1)
            progress.sweep_started("saturation", 300)
            progress.task_finished(task)
        return record

    calls = fake_experiment(learn)
    result = call("run", "method=der", "seed=2", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.stderr
    settings, directory = calls[0]
    assert (settings.name, settings.method.name, settings.seeds.data) == ("digits", "der", 2)
    assert directory == tmp_path / "out"
    lines = result.stdout.splitlines()
    rows = [line.split() for line in lines if line.strip()[:1].isdigit()]
    assert [row[0] for row in rows] == ["1", "2", "3", "4", "5"]
    last = record.tasks[-1]
    assert rows[-1][1] == f"{last.classifiers['linear'].all:.1f}"
    assert rows[-1][4] == f"{last.saturation:.3f}/{last.threshold:.3f}"
    assert rows[-1][5] == last.verdict
    assert max(len(line) for line in lines[:7]) <= 80
    assert f"Last {record.last:.2f} %" in result.stdout
    assert f"record  {record.directory}" in result.stdout
    assert f"report  {record.directory / 'report.html'}" in result.stdout
    assert (record.directory / "report.html").exists()
    assert "grow, 1 epoch over 300 images" in result.stderr


def test_run_without_report_and_into_an_existing_directory(
    make_record: MakeRecord, fake_experiment: Callable[[Any], list[Any]], tmp_path: Path
) -> None:
    record = make_record("replay", 1)
    calls = fake_experiment(lambda _progress: record)
    assert call("run", "--no-report").exit_code == 0
    assert not (record.directory / "report.html").exists()
    result = call("run", "--out", tmp_path)
    assert result.exit_code == 2
    assert "exists already" in result.stderr
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (
            GraceError("the loss of phase grow\nis not finite"),
            2,
            "error: the loss of phase grow is",
        ),
        (OSError(28, "No space left on device", "runs/x"), 2, "error: runs/x: no space left"),
    ],
)
def test_ends_of_a_run(
    error: BaseException, code: int, says: str, fake_experiment: Callable[[Any], list[Any]]
) -> None:
    def fail(_progress: Any) -> RunRecord:
        raise error

    fake_experiment(fail)
    result = call("run")
    assert result.exit_code == code
    assert says in result.stderr


def test_an_interrupted_run_says_where_its_record_is_and_how_to_go_on(
    fake_experiment: Callable[[Any], list[Any]],
) -> None:
    def interrupt(_progress: Any) -> RunRecord:
        error = KeyboardInterrupt()
        error.add_note("the record of the tasks so far: runs/x")
        raise error

    fake_experiment(interrupt)
    result = call("run")
    assert result.exit_code == 130
    assert result.stderr.splitlines() == [
        "interrupted",
        "the record of the tasks so far: runs/x",
        "add --resume to continue",
    ]


def test_our_own_mistakes_keep_their_traceback(
    fake_experiment: Callable[[Any], list[Any]],
) -> None:
    def fail(_progress: Any) -> RunRecord:
        raise AssertionError("ours")

    fake_experiment(fail)
    with pytest.raises(AssertionError, match="ours"):
        call("run")


def test_report_and_tables(
    make_record: MakeRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    record = make_record("grace", 1)
    make_record("der", 1)
    assert call("report", "runs").exit_code == 0
    one = call("report", record.directory, "-o", "one.html")
    assert one.stdout.endswith("report of 1 run: one.html\n")
    assert (tmp_path / "one.html").is_file()
    (tmp_path / "report.html").unlink()
    assert "\\toprule" in call("report", "runs", "--table", "latex").stdout
    numbers = call("report", "runs", "--table", "csv").stdout
    assert numbers.startswith("protocol,experiment,row,metric")
    assert not (tmp_path / "report.html").exists()
    (record.directory / "run.json").write_text("{")
    left = call("report", "runs", "--table", "csv")
    assert left.stderr.startswith("warning: left out: ")
    assert left.stdout.count("\n") < numbers.count("\n") / 2 + 1
    (tmp_path / "thesis.html").write_text("mine")
    taken = call("report", "runs", "--out", "thesis.html")
    assert taken.exit_code == 2
    assert "thesis.html" in taken.stderr
    assert call("report", "runs", "--output", "new.html").exit_code == 0


def test_what_was_warned_of_before_an_error_is_told(capsys: pytest.CaptureFixture[str]) -> None:
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
