"""``grace study``: the list, the plan without torch, and what it prints."""

from functools import partial
from pathlib import Path

import pytest

from grace.cli.study_lines import plan_lines, result_lines
from grace.configs.study import StudySettings, load_study
from grace.studies.made_study import MadeStudy
from grace.studies.resolving import Found
from grace.studies.study_cells import Selection, study_cells
from grace.studies.study_plan import plan_study
from support import commands, one_process
from support.synthetic_records import MakeRecord

call = partial(commands.call, "study")


def test_the_list_names_every_study() -> None:
    lines = call().stdout.splitlines()
    assert len(lines) == 10
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
    rows = [line.split() for line in ends[2].stdout.splitlines()]
    assert ["cifar100-b0i10", "grace-held", "1", "1", "waiting", "?"] in rows
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
    ],
)
def test_wrong_arguments(arguments: list[str], message: str) -> None:
    result = call(*arguments, "--plan")
    assert result.exit_code == 2
    assert message in result.stderr


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
