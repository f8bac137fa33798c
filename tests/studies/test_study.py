"""A whole study on the digits: dependent runs, replays, failures, and runs made elsewhere."""

import csv
import re
import shutil
import warnings
from pathlib import Path
from typing import Any, NoReturn

import pytest

from grace.base.errors import GraceError, GraceWarning
from grace.runs.model import RunRecord
from grace.runs.record import read_record
from grace.settings.experiment import ExperimentSettings
from grace.studies.plan import Found, Plan, Selection, expansions
from grace.studies.results import StudyResult
from grace.studies.schema import StudySettings, load_study
from grace.studies.study import make_study
from grace.studies.table import study_tables
from grace.studies.workers import Job
from support.runs_here import Started, here, left_by_killed, workers
from support.tiny_streams import tiny_backbones as tiny_backbones

STUDY = """
title: a tiny study
reference: der
scales:
  small:
    protocols: {tiny: digits}
    seeds: [1]
    images_per_backbone: 10
    set:
      - data.max_train_per_class=6
      - data.max_test_per_class=4
      - scenario.base=4
      - scenario.increment=3
      - memory.size=20
      - methods.grace.base.epochs=1
      - methods.grace.grow.epochs=1
      - methods.grace.compress.epochs=1
      - methods.der.base.epochs=1
      - methods.der.grow.epochs=1
      - methods.replay.base.epochs=1
      - methods.replay.update.epochs=1
rows:
  der: {method: der}
  IFL: {method: grace, set: [method.threshold=0.0]}
  replay: {method: replay, memory: aligned}
  -FL:
    method: grace
    set: [method.initialisation=random, method.threshold=1.0]
    expands_like: IFL
  pairs: {method: grace, grid: {method.threshold: [0.0, 0.01, 1.0], method.threshold_decay: [0.9]}}
columns: [last, average, backbones, exemplars]
figures: [accuracy, backbones, front, bars, protocols]
claims:
  - {id: B2, says: GRACE reaches DER, left: IFL, right: der, metrics: {last: 0, average: 0}}
  - {id: V1, kind: never-rises, setting: method.threshold}
  - {id: P1, kind: fewer-points}
"""


def plan_of(study: StudySettings, chosen: Selection, out: Path, *others: Path) -> Plan:
    return Plan(study, chosen, [out / "runs", *others])


def make(
    study: StudySettings, chosen: Selection, out: Path, *watcher: Started, **more: Any
) -> StudyResult:
    """Plan and make a study."""
    plan = plan_of(study, chosen, out, *more.pop("others", ()))
    return make_study(plan, out, *watcher, **more)


def study_of(folder: Path, text: str = STUDY) -> StudySettings:
    file = folder / "mine.yaml"
    file.write_text(text)
    return load_study(str(file))


Whole = tuple[Path, StudyResult, Started]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_backbones: None) -> Whole:
    folder, watcher = tmp_path_factory.mktemp("study"), Started()
    made = make(
        study_of(folder), Selection(), folder / "studies", watcher, workers=here, command="typed"
    )
    return folder / "studies", made, watcher


def of(made: StudyResult, row: str) -> Found:
    [cell] = [cell for cell in made.cells if cell.row == row]
    return made.found[cell.run]


def record_of(made: StudyResult, row: str) -> RunRecord:
    return of(made, row).record


def copy_without(whole: Whole, place: Path, *rows: str) -> Path:
    """Copy the study without the runs of some rows."""
    out = Path(shutil.copytree(whole[0], place / "studies"))
    for row in rows:
        shutil.rmtree(out / "runs" / record_of(whole[1], row).directory.name)
    return out


def test_what_waits_is_made_after_what_it_needs_and_equal_decisions_once(whole: Whole) -> None:
    _, made, watcher = whole
    assert made.failures == {}
    assert watcher.planned_runs == [(8, 1)]
    assert watcher.names[:3] == ["der tiny s1", "IFL tiny s1", "replay tiny s1 plain"]
    assert set(watcher.names[3:5]) == {"replay tiny s1", "-FL tiny s1"}
    # Thresholds 0 and 0.01 expand at every task, as IFL does: two pairs of the grid are its run.
    assert watcher.names[5:] == ["1/0.9 tiny s1"]
    for row in ("0/0.9", "0.01/0.9"):
        assert of(made, row).is_replayed
        assert record_of(made, row).directory == record_of(made, "IFL").directory


def test_what_waits_takes_its_settings_from_records(whole: Whole) -> None:
    out, made, _ = whole
    assert expansions(record_of(made, "IFL")) == expansions(record_of(made, "-FL")) == [2, 3]
    assert record_of(made, "-FL").info.config["method"]["expand_at"] == [2, 3]
    assert record_of(made, "1/0.9").tasks[-1].backbones == 1
    # Two backbones more than Replay, for 10 images each, beside 20.
    assert record_of(made, "der").tasks[-1].backbones == 3
    assert record_of(made, "replay").info.config["memory"]["size"] == 40
    for record in made.records:
        assert record.directory == out / "runs" / record.info.fingerprints["run"]
        assert (out / "cells" / f"{record.directory.name}.yaml").is_file()
    assert len(list((out / "first-tasks").iterdir())) == 1  # All of them begin alike.


def test_the_files_of_a_study(whole: Whole) -> None:
    folder = whole[0] / "mine"
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    drawn = ("accuracy", "backbones", "front", "bars", "protocols")
    assert names == {
        *("table.csv", "table.tex", "claims.csv", "report.html"),
        *(f"figures/{name}.svg" for name in drawn),
    }
    assert set(whole[1].files) == {folder / name for name in names}
    page = (folder / "report.html").read_text()
    for text in ("tiny: front of backbones and Avg", ">typed</p>", "cpu: "):
        assert text in page
    assert page.count("<svg ") == len(drawn) + 1  # And the matrices of one run.
    assert len(page) < 300_000
    rows = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    assert {row["row"].removeprefix("'") for row in rows} == {cell.row for cell in whole[1].cells}


def test_the_same_call_makes_nothing_again(whole: Whole, tmp_path: Path) -> None:
    out, made, _ = whole
    place = made.records[0].directory
    left_by_killed(place)
    planned = plan_of(study_of(tmp_path), Selection(), out)
    assert planned.is_over
    again = make(study_of(tmp_path), Selection(), out, workers=refuse)
    found = {run: one.record.directory for run, one in again.found.items()}
    assert found == {run: one.record.directory for run, one in made.found.items()}
    assert {path.name for path in place.iterdir()} == {"run.json", "tasks.jsonl"}


def refuse(settings: ExperimentSettings) -> NoReturn:
    raise AssertionError("there is nothing to make")


@pytest.mark.parametrize(
    ("overrides", "why"),
    [
        # The record says what was chosen, so that the run was never found again.
        ("engine.precision=auto", "auto can mean something else on each machine"),
        ("data.root=nowhere", "'nowhere' does not exist"),
    ],
)
def test_a_refused_study_leaves_no_folder(overrides: str, why: str, tmp_path: Path) -> None:
    study = study_of(tmp_path, STUDY.replace("tiny: digits", "tiny: tiny-imagenet-16px"))
    with pytest.raises(GraceError, match=why):
        make(study, Selection(overrides=(overrides,)), tmp_path / "studies")
    assert not (tmp_path / "studies").exists()


def test_runs_made_elsewhere_are_found_where_they_are(whole: Whole, tmp_path: Path) -> None:
    elsewhere = tmp_path / "deep" / "runs"
    shutil.copytree(whole[0] / "runs", elsewhere)
    before = sorted((path, path.stat().st_mtime_ns) for path in elsewhere.rglob("*"))
    made = make(
        study_of(tmp_path),
        Selection(),
        tmp_path / "new",
        others=[tmp_path / "deep"],
        workers=refuse,
    )
    assert {record.directory.parent for record in made.records} == {elsewhere}
    assert sorted((path, path.stat().st_mtime_ns) for path in elsewhere.rglob("*")) == before


@pytest.mark.parametrize(("old", "new"), [("grace", "0.0.1"), ("protocol", "0" * 64)])
def test_runs_that_are_made_again_are_told_of_first(
    old: str, new: str, whole: Whole, tmp_path: Path
) -> None:
    """They were made with other versions, or on other images, which a plan does not know."""
    out = copy_without(whole, tmp_path)
    for file in out.glob("runs/*/run.json"):
        text = file.read_text()
        assert old in text
        file.write_text(re.sub(rf'"{old}": "[^"]*"', f'"{old}": "{new}"', text))
    planned = plan_of(study_of(tmp_path), Selection(rows=("der", "replay")), out)
    states = {run.name: planned.state(run) for run in planned.runs}
    if old == "grace":
        assert states["der tiny s1"] == "made differently"
        assert states["replay tiny s1"] == "waiting"
    else:
        assert planned.is_over
    with pytest.warns(GraceWarning, match="2 runs with these .* made again$"):
        planned.compare_images()
    assert len(planned.left) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan_of(study_of(tmp_path), Selection(), tmp_path / "others").compare_images()


def test_without_the_images_runs_are_found_by_their_settings(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise GraceError("the images are gone")

    monkeypatch.setattr("grace.studies.plan.identify", gone)
    made = make(study_of(tmp_path), Selection(), whole[0], workers=refuse)
    assert len(made.found) == 8
    assert "found by their settings: the images are gone" in made.notes[0]
    with pytest.raises(GraceError, match="the images are gone"):
        make(study_of(tmp_path), Selection(seeds=(9,)), whole[0])


def test_a_failed_run_leaves_a_dash_and_what_needs_it_is_named(
    whole: Whole, tmp_path: Path
) -> None:
    out = copy_without(whole, tmp_path, "der", "replay")
    fail = workers(lambda job: "no room")
    made = make(study_of(tmp_path), Selection(), out, workers=fail)
    assert made.failures == {"der tiny s1": "no room", "replay tiny s1": "it needs der tiny s1"}
    [table, _] = study_tables(made)
    assert table.rows[0] == ["der", "0", "–", "–", "–", "–"]
    assert "not all runs are finished: der, replay" in table.notes


def test_an_interrupted_study_writes_what_it_has_and_goes_on(whole: Whole, tmp_path: Path) -> None:
    def interrupt(job: Job) -> str:
        raise KeyboardInterrupt

    out = copy_without(whole, tmp_path, "-FL")
    (out / "mine" / "table.csv").unlink()
    with pytest.raises(KeyboardInterrupt):
        make(study_of(tmp_path), Selection(), out, workers=workers(interrupt))
    assert (out / "mine" / "table.csv").is_file()
    watcher = Started()
    assert make(study_of(tmp_path), Selection(), out, watcher, workers=here).failures == {}
    assert watcher.names == ["-FL tiny s1"]
    assert read_record(out / "runs" / record_of(whole[1], "-FL").directory.name).complete


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("{", "", "is damaged"),
        ('"run": "', '"run": "../', "fingerprints.run: it should be a text of"),
        ('"run": "', '"walk": "', "has no fingerprint"),
    ],
)
def test_records_that_cannot_be_read_are_named(
    old: str, new: str, why: str, whole: Whole, tmp_path: Path
) -> None:
    """A stranger's record is left out with a warning, wherever its name leads."""
    strange = tmp_path / "strange"
    for name in ("first", "second"):
        bad = Path(shutil.copytree(record_of(whole[1], "der").directory, strange / name))
        text = (bad / "run.json").read_text()
        assert old in text
        (bad / "run.json").write_text(text.replace(old, new, 1))
    study, chosen = study_of(tmp_path), Selection(rows=("der",))
    expected = f"^2 records cannot be used and count as missing: .*first.*{why}.*; and 1 more$"
    with pytest.warns(GraceWarning, match=expected):
        plan = plan_of(study, chosen, tmp_path / "studies", strange)
    assert [plan.state(run) for run in plan.runs] == ["left"]


def test_a_damaged_record_is_served_by_a_whole_one_or_named_with_what_to_do(
    whole: Whole, tmp_path: Path, tiny_backbones: None
) -> None:
    out = copy_without(whole, tmp_path)
    bad = out / "runs" / record_of(whole[1], "der").directory.name
    (bad / "tasks.jsonl").write_text("[]\n")
    study, chosen = study_of(tmp_path), Selection(rows=("der",))
    with pytest.warns(GraceWarning, match=f"^1 record cannot be used .* {bad}"):
        made = make(study, chosen, out, others=[whole[0] / "runs"], workers=refuse)
    assert record_of(made, "der").directory.parent == whole[0] / "runs"
    with pytest.warns(GraceWarning):
        made = make(study, chosen, out, workers=here)
    assert f"remove {bad} and run it again" in made.failures["der tiny s1"]
