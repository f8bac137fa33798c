"""``grace study``: the list, the plan without torch, and what it prints."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from grace.base.errors import GraceError
from grace.cli.study import _typed
from grace.cli.study_lines import plan_lines, result_lines
from grace.settings.study import StudySettings, list_studies, load_study
from grace.studies.made_study import MadeStudy
from grace.studies.resolving import Found
from grace.studies.study_cells import Selection, study_cells
from grace.studies.study_plan import plan_study
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
        without=["torch", "torchvision", "matplotlib", "plotly"],
    )
    assert [end.exit_code for end in ends] == [0, 0, 0, 0], ends
    assert "51 runs: 0 done, 51 to make" in ends[1].stdout
    assert "no finished run on this stream yet" in ends[1].stdout
    rows = [line.split() for line in ends[2].stdout.splitlines()]
    assert ["cifar100-b0i10", "grace-held", "1,2,3", "3", "waiting", "?"] in rows
    assert "36 runs: 0 done, 36 to make" in ends[3].stdout
    assert list(tmp_path.iterdir()) == []  # A plan writes nothing.


def test_a_plan_counts_what_is_there_and_estimates_the_rest(
    make_record: MakeRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = StudySettings.model_validate(
        {
            "name": "small",
            "scales": {"small": {"protocols": {"p": {"experiment": "digits"}}, "seeds": [1, 2]}},
            "rows": {"der": {"method": "der"}, "grace": {"method": "grace"}},
        }
    )
    record = make_record("der")
    monkeypatch.setattr("grace.studies.resolving.collect_versions", lambda: record.info.versions)
    planned = plan_study(study, Selection(), tmp_path / "studies", [tmp_path])
    lines = list(plan_lines(planned))
    # A synthetic run has five tasks of 1.75 s: one DER is to be made. GRACE: the same seconds by
    # images × epochs, see test_estimates.
    assert lines[2].split() == ["p", "der", "1,2", "1", "done,", "1", "left", "8.8", "s"]
    assert lines[-1].startswith("4 runs: 1 done, 3 to make, about ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ablatoin"], "no packaged study 'ablatoin'; did you mean 'ablation'"),
        (["ablation", "overview"], "'overview' is no setting"),
        (["memory.size=3"], "'memory.size=3' is no study"),
        (["ablation", "--rows", "IFX"], "has no row 'IFX'"),
        (["ablation", "--seeds", "x"], "--seeds 'x': write seeds as 1,2,3 or 1-3"),
        (["ablation", "method=der"], "use --rows"),
        (["ablation", "seed=4"], "use --seeds"),
        (["ablation", "--runs", "nowhere"], "--runs nowhere: there is no such folder"),
        (["ablation", "--seeds", "2,1-3"], "seed 2 is given twice: name it once"),
        (["ablation", "--rows", "der,IFL,der"], "row der is given twice"),
        (["ablation", "--protocols", "b0i4,b0i4"], "protocol b0i4 is given twice"),
        (["grid", "--search", "3", "--rows", "small-pairs"], "--rows has no effect on --search"),
        (["grid", "--search", "3"], "--plan needs to know all runs, and --search chooses them"),
        (["grid", "--slurm", "--time=1"], "--slurm has no effect on --plan, which makes no runs"),
        (["grid", "--ray", "auto"], "--ray has no effect on --plan, which makes no runs: leave"),
        (["grid", "--storage", "sqlite:///x"], "--storage is for a search: give --search N too"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str) -> None:
    result = call(*arguments, "--plan")
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("more", [["--plan"], []])
def test_a_file_in_place_of_the_folder_is_refused(more: list[str], tmp_path: Path) -> None:
    file = tmp_path / "studies"
    file.write_text("")
    result = call("ablation", "--out", file, *more)
    assert result.exit_code == 2
    assert "--out" in result.stderr
    assert str(file) in result.stderr
    assert file.read_text() == ""


@pytest.mark.parametrize("gpus", [(), ("0",)])
def test_runs_per_gpu_have_no_effect_without_one(
    gpus: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def make_study(*_: object, **__: object) -> None:
        raise GraceError("seen")

    monkeypatch.setattr("grace.cli.study.visible_gpus", lambda: gpus)
    monkeypatch.setattr("grace.cli.study.make_study", make_study)
    result = call("ablation", "--out", tmp_path, "--jobs-per-gpu", "2")
    warned = "warning: --jobs-per-gpu has no effect" in result.stderr
    assert warned == (not gpus)
    assert "error: seen" in result.stderr


def test_a_setting_without_effect_is_told_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def make_study(study: StudySettings, selection: Selection, *_: object, **__: object) -> None:
        study_cells(study, selection)
        raise GraceError("seen")

    monkeypatch.setattr("grace.cli.study.make_study", make_study)
    result = call("ablation", "data.class_list=icarl", "--scale", "published", "--out", tmp_path)
    assert result.stderr.splitlines() == [
        "warning: data.class_list has no effect: it is imagenet100's",
        "error: seen",
    ]


def test_the_lines_at_the_end(make_record: MakeRecord, tmp_path: Path) -> None:
    study = load_study("ablation")
    selection = Selection("published", rows=("der", "IFL"))
    cells = tuple(study_cells(study, selection))
    found = {cells[0].run: Found(make_record("der"))}
    made = MadeStudy(study, selection, cells, found, {"IFL b0i10 s1": "no room"}, (), tmp_path)
    lines = list(result_lines(made))
    assert lines[0] == "b0i10"
    assert lines[1].split() == [
        "Row",
        "Runs",
        "Last",
        "(%)",
        "paper",
        "Avg",
        "(%)",
        "paper",
        "Backbones",
    ]
    assert lines[3].split()[:2] == ["IFL", "0"]
    assert any("the same data and settings" in line for line in lines)
    assert lines[-1] == "IFL b0i10 s1 failed: no room"
    assert any(line.startswith("B2") and "not measured" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ray", "auto", "--slurm", ""], "--ray and --slurm are two ways to the same end"),
        (["--slurm", "-p gpu"], "--slurm: 'gpu' is no option of sbatch: write a value as --name="),
        (["--ray", "auto"], "--ray needs ray: pip install 'grace-cil[cluster]'"),
        (["--search", "2"], "--search needs optuna: pip install 'grace-cil[search]'"),
    ],
)
def test_other_machines_and_searches_are_refused_with_a_remedy(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ray", "optuna"):  # As if it were not installed.
        monkeypatch.setitem(sys.modules, name, None)
    result = call("grid", "--out", str(tmp_path / "studies"), *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_task_of_an_array_job_gets_the_same_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def submit_study(*_: object, **options: Any) -> tuple[str, int]:
        given.update(options)
        return "4711", 2

    monkeypatch.setattr("grace.cli.study.submit_study", submit_study)
    out = tmp_path / "my studies"
    words = ["--rows", "der,IFL", "--seeds", "1-2", "--jobs", "5", "--jobs-per-gpu", "3"]
    result = call("ablation", "memory.size=9", *words, "--out", str(out), "--slurm", "--time=1")
    assert result.exit_code == 0, result.stderr
    assert "submitted array job 4711 of 2 tasks" in result.stdout
    assert "with --plan in place of --slurm shows what is done" in result.stdout
    assert (given["most_tasks"], given["options"]) == (5, ["--time=1"])
    seen: dict[str, Any] = {}

    def make_study(study: StudySettings, selection: Selection, *_: object, **options: Any) -> None:
        seen.update(options, name=study.name, selection=selection, out=_[0])
        raise GraceError("seen")

    monkeypatch.setattr("grace.cli.study.make_study", make_study)
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "4711")
    arguments = list(given["arguments"])
    assert arguments.pop(0) == "study"
    assert "error: seen" in call(*arguments).stderr
    wanted = Selection(rows=("der", "IFL"), seeds=(1, 2), overrides=("memory.size=9",))
    assert (seen["name"], seen["selection"], seen["out"]) == ("ablation", wanted, out)
    assert (seen["array"], seen["at_once"]) == ("4711", None)


def test_the_tables_of_an_array_job_name_the_command_that_makes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["study", "--out=x", "--array-task", "--", "ablation"]
    monkeypatch.setattr(sys, "argv", ["grace", *words])
    assert _typed() == "grace study --out=x -- ablation"


def test_the_password_of_a_database_is_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "postgresql://me:secret@host/name"  # noqa: S105 - of this test
    for words in (["--storage", secret, "--jobs", "2"], [f"--storage={secret}", "--jobs", "2"]):
        monkeypatch.setattr(sys, "argv", ["grace", "study", "grid", "--search", "2", *words])
        typed = _typed()
        assert "secret" not in typed
        assert typed.endswith("URL --jobs 2")
