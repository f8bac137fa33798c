"""``grace study``: the list, the plan without torch, and what it prints."""

import json
import sys
from functools import partial
from pathlib import Path

import pytest

from grace.studies.plan import Found, Selection, study_cells
from grace.studies.results import StudyResult
from grace.studies.schema import list_studies, load_study
from support import commands, one_process
from support.synthetic_records import MakeRecord

call = partial(commands.call, "study")


def test_the_list_names_every_study() -> None:
    lines = call().stdout.splitlines()
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
    assert "no finished run yet" in ends[1].stdout
    rows = [line.split() for line in ends[2].stdout.splitlines()]
    assert ["cifar100-b0i10", "grace-held", "1,2,3", "3", "waiting", "?"] in rows
    assert "36 runs: 0 done, 36 to make" in ends[3].stdout
    assert list(tmp_path.iterdir()) == []  # A plan writes nothing.


def test_a_plan_counts_what_is_there_and_estimates_the_rest(
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
    lines = call(*given).stdout.splitlines()
    # A synthetic run has five tasks of 1.75 s: one DER is to be made. GRACE may take as long.
    assert lines[2].split() == ["p", "der", "1,2", "1", "done,", "1", "left", "8.8", "s"]
    assert lines[-1].startswith("4 runs: 1 done, 3 to make, about ")
    states = json.loads(call(*given, "--json").stdout)["runs"]
    assert list(states.values()) == ["done", "left", "left", "left"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ablatoin"], "no packaged study 'ablatoin'; did you mean 'ablation'"),
        (["ablation", "overview"], "'overview' is no setting"),
        (["memory.size=3"], "'memory.size=3' is no study"),
        (["ablation", "--scale", "smal"], "has no scale 'smal'; did you mean 'small'"),
        (["ablation", "--protocols", "b0i5"], "has no protocol 'b0i5'"),
        (["ablation", "--rows", "IFX"], "has no row 'IFX'"),
        (["grid", "--rows", "0.4/0.9"], "no row '0.4/0.9': it is a point of row 'small-pairs'"),
        (["ablation", "--seeds", "x"], "--seeds 'x': write seeds as 1,2,3 or 1-3"),
        (["ablation", "method=der"], "choose rows, methods or seeds"),
        (["ablation", "method.threshold=1"], "write methods.NAME.KEY="),
        (["ablation", "--runs", "nowhere"], "--runs nowhere: there is no such folder"),
        (["ablation", "--seeds", "2,1-3"], "seed 2 is given twice: name it once"),
        (["ablation", "--rows", "der,IFL,der"], "cell der b0i4 s1 is given twice"),
        (["ablation", "--protocols", "b0i4,b0i4"], "cell der b0i4 s1 is given twice"),
        (["ablation", "data.root=nowhere"], "'nowhere' does not exist"),
        (["grid", "--ray", "auto"], "--ray has no effect on --plan, which makes no runs"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str) -> None:
    result = call(*arguments, "--plan")
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "studies").touch()
    result = call("ablation", "--out", tmp_path / "studies")
    assert result.exit_code == 2
    assert f"{tmp_path / 'studies'}" in result.stderr


def test_the_lines_at_the_end(make_record: MakeRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_study("ablation")
    selection = Selection("published", rows=("der", "IFL"))
    cells = tuple(study_cells(study, selection))
    found = {cells[0].run: Found(make_record("der"))}
    made = StudyResult(study, selection, cells, found, {"IFL b0i10 s1": "no room"})
    monkeypatch.setattr("grace.studies.study.make_study", lambda *_, **__: made)
    result = call("ablation")
    lines = result.stdout.splitlines()
    assert result.exit_code == 1
    assert lines[0] == "b0i10"
    titles = "Row Runs Last (%) paper Avg (%) paper Backbones"
    assert lines[1].split() == titles.split()
    assert lines[3].split()[:2] == ["IFL", "0"]
    assert any("the same data and settings" in line for line in lines)
    assert lines[-1] == "IFL b0i10 s1 failed: no room"
    assert any(line.startswith("B2") and "not measured" in line for line in lines)
    told = json.loads(call("ablation", "--json").stdout)
    assert told["claims"]["B2"] == "not measured"
    assert set(told["tables"][0]["rows"][0]) == {
        *("Row", "Runs", "Last (%)", "Last (%) paper", "Avg (%)", "Avg (%) paper", "Backbones"),
    }


def test_ray_is_refused_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # As if it were not installed.
    images = "data.max_train_per_class=5"
    study = tmp_path / "own.yaml"
    study.write_text(
        "scales: {s: {protocols: {p: digits}, seeds: [1]}}\nrows: {der: {method: der}}\n"
    )
    result = call(study, images, "--out", str(tmp_path / "studies"), "--ray", "auto")
    assert result.exit_code == 2
    assert "--ray needs ray: pip install 'grace-cil[cluster]'" in result.stderr
