"""``grace study`` and ``grace compare``: the list, the plan without torch, and what it prints."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from grace.studies import study as studies
from grace.studies.plan import Found, Selection, study_cells
from grace.studies.results import StudyResult
from grace.studies.schema import list_studies, load_study
from support import one_process
from support.commands import ran
from support.synthetic_records import MakeRecord
from support.synthetic_studies import made

Calls = list[dict[str, Any]]


def test_the_list_names_every_study() -> None:
    lines = ran("study").stdout.splitlines()
    assert len(lines) == len(list_studies())
    assert lines[0].split()[:3] == ["ablation", "Table", "4:"]


def test_a_plan_needs_neither_torch_nor_images(tmp_path: Path) -> None:
    ends = one_process.calls(
        ["study"],
        ["study", "ablation", "--plan", "--out", tmp_path],
        ["study", "memory-aligned", "--plan", "--out", tmp_path, "--scale", "published"],
        ["study", "grid", "memory.size=50", "--plan", "--rows", "small-pairs", "--seeds", "4-5"],
        without=["torch", "torchvision", "matplotlib", "pandas"],
    )
    assert [end.exit_code for end in ends] == [0, 0, 0, 0], ends
    assert "51 runs: 0 done, 51 to make" in ends[1].stdout
    rows = [line.split() for line in ends[2].stdout.splitlines()]
    assert ["cifar100-b0i10", "grace-held", "1,2,3", "3", "waiting"] in rows
    assert "36 runs: 0 done, 36 to make" in ends[3].stdout
    assert list(tmp_path.iterdir()) == []  # A plan writes nothing.


def test_a_plan_counts_what_is_there(
    make_record: MakeRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = make_record("der")
    monkeypatch.setattr("grace.studies.plan.collect_versions", lambda: record.info.versions)
    file = tmp_path / "small.yaml"
    file.write_text(
        "scales: {small: {protocols: {p: digits}, seeds: [1, 2]}}\n"
        "rows: {der: {method: der}, grace: {method: grace}}\n"
    )
    given = [file, "--plan", "--out", tmp_path / "studies", "--runs", tmp_path]
    lines = ran("study", *given).stdout.splitlines()
    assert lines[2].split() == ["p", "der", "1,2", "1", "done,", "1", "left"]
    assert lines[-1] == "4 runs: 1 done, 3 to make"
    states = json.loads(ran("study", *given, "--json").stdout)["runs"]
    assert list(states.values()) == ["done", "left", "left", "left"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("study ablatoin", "no packaged study 'ablatoin'; did you mean 'ablation'"),
        ("study ablation overview", "'overview' is no setting"),
        ("study memory.size=3", "'memory.size=3' is no study"),
        ("study ablation --scale smal", "has no scale 'smal'; did you mean 'small'"),
        ("study ablation --protocols b0i5", "has no protocol 'b0i5'"),
        ("study ablation --rows IFX", "has no row 'IFX'"),
        ("study ablation method=der", "choose rows, methods or seeds"),
        ("study ablation method.threshold=1", "write methods.NAME.KEY="),
        ("study ablation --runs nowhere", "'nowhere' does not exist"),
        ("study ablation --seeds 2,1-3", "b0i4 s2 is given twice: name it once"),
        ("study ablation --rows der,IFL,der", "der b0i4 s1 is given twice"),
        ("study ablation data.root=nowhere", "'nowhere' does not exist"),
        ("study ablation --out file", "'file' is"),
        ("compare --seeds one", "--seeds 'one': write seeds as 1,2,3 or 1-3"),
        ("compare --seeds 3-1", "--seeds '3-1': write seeds as"),
        ("compare --methods derr", "method: unknown method 'derr'; did you mean 'der'?"),
        ("compare digits cifar10", "'cifar10' is no setting: after the experiment 'digits'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    command: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    error = ran(*command.split(), code=2).stderr
    assert message in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_lines_at_the_end(make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study("ablation")
    selection = Selection("published", rows=("der", "IFL"))
    cells = tuple(study_cells(study, selection))
    found = {cells[0].run: Found(make_record("der"))}
    failures = {"IFL b0i10 s1": "no room"}
    result = StudyResult(study, selection, cells, found, failures)
    monkeypatch.setattr("grace.studies.study.make_study", lambda *_, **__: result)
    lines = ran("study", "ablation", code=1).stdout.splitlines()
    assert lines[0] == "b0i10"
    titles = "Row Runs Last (%) paper Avg (%) paper Backbones"
    assert lines[1].split() == titles.split()
    assert lines[3].split()[:2] == ["IFL", "0"]
    assert any("the same data and settings" in line for line in lines)
    assert lines[-1] == "IFL b0i10 s1 failed: no room"
    assert any(line.startswith("B2") and "not measured" in line for line in lines)
    told = json.loads(ran("study", "ablation", "--json", code=1).stdout)
    assert told["claims"]["B2"] == "not measured"
    assert " ".join(told["tables"][0]["headings"]) == titles


def test_ray_is_refused_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # As if it were not installed.
    images = "data.max_train_per_class=5"
    study = tmp_path / "own.yaml"
    study.write_text(
        "scales: {s: {protocols: {p: digits}, seeds: [1]}}\nrows: {der: {method: der}}\n"
    )
    result = ran("study", study, images, "--out", tmp_path / "studies", "--ray", "auto", code=2)
    assert "--ray needs ray: pip install 'grace-cil[cluster]'" in result.stderr


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, make_record: MakeRecord) -> Calls:
    """Put a comparison that trains nothing in place of the real one."""
    found: Calls = []

    def compare(experiment: str, overrides: Any, **options: Any) -> StudyResult:
        found.append({"experiment": experiment, "overrides": overrides, **options})
        return made(make_record, {"der": [(60, 70, 3)] * 3}, columns=["last"])

    monkeypatch.setattr(studies, "compare", compare)
    return found


def test_a_comparison(calls: Calls) -> None:
    lines = ran("compare").stdout.splitlines()
    assert lines[:3] == ["b0i10", "Row  Runs  Last (%)", "der     3     60.00"]
    own = calls.pop()
    assert (own["experiment"], own["methods"], own["seeds"]) == ("digits", (), [1, 2, 3])
    assert own["directory"] is None
    words = ["digits", "memory.size=50", "--methods", "der, wa", "--seeds", "2, 5-6,0"]
    result = ran("compare", *words, "--jobs", "3", "--out", "there", "--json")
    own = calls.pop()
    assert (own["methods"], own["seeds"]) == (("der", "wa"), [2, 5, 6, 0])
    assert (own["overrides"], own["directory"]) == (["memory.size=50"], Path("there"))
    assert own["workers"].keywords == {"at_once": 3}
    found = json.loads(result.stdout)
    assert found["tables"][0]["headings"] == ["Row", "Runs", "Last (%)"]
    assert found["tables"][0]["rows"] == [["der", "3", "60.00"]]
    assert found["failures"] == {}


def test_a_request_to_end_counts_as_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(studies, "compare", compare)
    assert "the same command continues them" in ran("compare", code=130).stderr
    assert signal.getsignal(signal.SIGTERM) is before
