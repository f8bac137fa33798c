"""A whole study on the digits: dependent runs, replays, failures, and runs made elsewhere."""

import csv
import shutil
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from grace.base.errors import GraceError, GraceWarning
from grace.runs import RunRecord, read_record
from grace.runs.run import identify, run_experiment
from grace.settings import yaml_text
from grace.settings.experiment import ExperimentSettings
from grace.settings.study import StudySettings, load_study
from grace.studies import study
from grace.studies.cells import Cell
from grace.studies.first_tasks import first_network
from grace.studies.made_study import MadeStudy
from grace.studies.pool import JobSource, Unwatched, Watcher
from grace.studies.replay import expansions
from grace.studies.resolving import Found
from grace.studies.run_store import LeftOutWarning, RunStore
from grace.studies.search import SearchSettings
from grace.studies.study import make_study, submit_study
from grace.studies.study_cells import Selection, study_cells
from grace.studies.study_figures import study_figures
from grace.studies.study_plan import plan_study
from grace.studies.study_results import Results
from grace.studies.study_runs import StudyRuns
from support.interruptions import interrupted
from support.runs_here import carry_out_here, left_by_killed
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
    expand_at: from IFL
  pairs: {method: grace, grid: {method.threshold: [0.0, 0.01, 1.0], method.threshold_decay: [0.9]}}
columns: [last, average, backbones, exemplars]
figures: [accuracy, backbones, front, bars, protocols]
claims:
  - {id: B2, says: GRACE reaches DER, left: IFL, right: der, metrics: {last: 0, average: 0}}
  - {id: V1, kind: never-rises, setting: method.threshold}
  - {id: P1, kind: fewer-points}
"""


LEFT_BY_KILLED = [f"studies/mine{place}/.grace-unfinished-{'0' * 32}" for place in ("", "/figures")]


class Started(Unwatched):
    """The names of the runs that were made."""

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.names: list[str] = []

    def planned(self, num_left: int, at_once: int) -> None:
        self.counts.append(num_left)

    def left(self, num_left: int) -> None:
        self.counts.append(num_left)

    def cell_ended(self, cell: Cell, failure: str | None) -> None:
        self.names.append(cell.name)


Whole = tuple[Path, MadeStudy, Started]


def study_of(folder: Path, text: str = STUDY) -> StudySettings:
    file = folder / "mine.yaml"
    file.write_text(text)
    return load_study(str(file))


@pytest.fixture
def unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the files of a study, which take seconds to draw."""
    monkeypatch.setattr("grace.studies.study.write_study", lambda made, command: ())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, tiny_backbones: None) -> Whole:
    folder, watcher = tmp_path_factory.mktemp("study"), Started()
    for name in LEFT_BY_KILLED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    with pytest.MonkeyPatch.context() as patch:
        slow = partial(carry_out_here, slow="IFL tiny s1")
        patch.setattr("grace.studies.study.carry_out", slow)
        made = make_study(
            study_of(folder), Selection(), folder / "studies", watcher, at_once=1, command="typed"
        )
    return folder / "studies", made, watcher


def of(made: MadeStudy, row: str) -> Found:
    [cell] = [cell for cell in made.cells if cell.row == row]
    return made.found[cell.run]


def record_of(made: MadeStudy, row: str) -> RunRecord:
    return of(made, row).record


def copy_without(whole: Whole, place: Path, *rows: str) -> Path:
    """Copy the study without the runs of some rows."""
    out = Path(shutil.copytree(whole[0], place / "studies"))
    for row in rows:
        shutil.rmtree(out / "runs" / record_of(whole[1], row).directory.name)
    return out


def test_what_waits_starts_as_soon_as_it_can_and_equal_decisions_are_made_once(
    whole: Whole,
) -> None:
    _, made, watcher = whole
    assert made.failures == {}
    # The aligned run starts when its two are recorded, though IFL, before it, is not over; what
    # needs or resembles IFL waits.
    assert watcher.names[:3] == ["der tiny s1", "replay tiny s1 needs 1", "replay tiny s1"]
    assert watcher.names[3:] == ["IFL tiny s1", "-FL tiny s1", "1/0.9 tiny s1"]
    # Thresholds 0 and 0.01 expand at every task, as IFL does: two pairs of the grid are its run.
    assert watcher.counts == [8, 2]
    for row in ("0/0.9", "0.01/0.9"):
        assert of(made, row).is_replayed
        assert record_of(made, row).directory == record_of(made, "IFL").directory


def test_what_waits_takes_its_settings_from_records(whole: Whole) -> None:
    _, made, _ = whole
    assert expansions(record_of(made, "IFL")) == [2, 3]
    assert expansions(record_of(made, "-FL")) == [2, 3]
    assert record_of(made, "-FL").info.config["method"]["expand_at"] == [2, 3]
    assert record_of(made, "1/0.9").tasks[-1].backbones == 1
    # Two backbones more than Replay, for 10 images each, beside 20.
    assert record_of(made, "der").tasks[-1].backbones == 3
    assert record_of(made, "replay").info.config["memory"]["size"] == 40


def test_runs_lie_under_their_fingerprints_for_all_studies(whole: Whole) -> None:
    out, made, _ = whole
    for record in made.records:
        assert record.directory == out / "runs" / record.info.fingerprints["run"]
        assert (out / "cells" / f"{record.directory.name}.yaml").is_file()
    assert len(list((out / "first-tasks").iterdir())) == 1  # All of them begin alike.


def test_the_files_of_a_study(whole: Whole) -> None:
    folder = whole[0] / "mine"
    names = {path.name for path in folder.iterdir()}
    assert names == {
        *("summary.md", "table.md", "table.csv", "table.tex", "plan.csv"),
        *("claims.md", "claims.csv", "front.csv", "figures", "report.html"),
    }
    fronts = list(csv.DictReader((folder / "front.csv").read_text().splitlines()))
    assert [line["row"] for line in fronts] == ["0/0.9", "0.01/0.9", "1/0.9"]
    for name in ("table.md", "summary.md", "table.tex", "report.html"):
        assert "tiny: front of backbones and Avg" in (folder / name).read_text()
    drawn = {path.name for path in (folder / "figures").iterdir()}
    assert drawn == {f"{n}.svg" for n in ("accuracy", "backbones", "front", "bars", "protocols")}
    summary = (folder / "summary.md").read_text()
    assert "```bash\ntyped\n```" in summary
    assert "hardware: " in summary
    rows = list(csv.DictReader((folder / "plan.csv").read_text().splitlines()))
    states = {row["row"]: row["state"] for row in rows}
    assert states == dict.fromkeys(states, "done") | dict.fromkeys(
        ("0/0.9", "0.01/0.9"), "replayed"
    )
    page = (folder / "report.html").read_text()
    assert "data:image/svg+xml;base64," in page
    assert '"customdata":[' in page
    # The pair of most backbones was trained, and its run stands for the two others.
    assert '"text":["1/0.9"]' in page
    assert '"text":["0/0.9, 0.01/0.9 (replayed)"]' in page
    assert '"mode":"lines+markers","name":"front"' in page, "a front of one point is seen too"


def test_a_row_looks_the_same_in_all_figures(whole: Whole, tmp_path: Path) -> None:
    text = STUDY.replace("IFL: {method: grace,", "IFL: {method: grace, ranked: false,")
    panels = study_figures(Results(replace(whole[1], study=study_of(tmp_path, text))))
    lines, points = ([one.label for one in panels[n][0].series] for n in ("accuracy", "protocols"))
    assert points == [*lines, "IFL"]


def test_the_same_call_makes_nothing_again(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unwritten: None
) -> None:
    out, made, _ = whole
    place = made.records[0].directory
    left_by_killed(place)
    planned = plan_study(study_of(tmp_path), Selection(), out)
    assert planned.left == ()
    assert planned.seconds == 0

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("there is nothing to make")

    monkeypatch.setattr("grace.studies.study.carry_out", refuse)
    again = make_study(study_of(tmp_path), Selection(), out, Unwatched())
    assert [one.record.directory for one in again.found.values()] == [
        one.record.directory for one in made.found.values()
    ]
    assert {path.name for path in place.iterdir()} == {"run.json", "tasks.jsonl"}


def test_precision_is_the_same_on_every_machine(tmp_path: Path) -> None:
    """The record says what was chosen, so that the run was never found again."""
    planned = Selection(overrides=("engine.precision=auto",))
    with pytest.raises(GraceError, match="auto can mean something else on each machine"):
        plan_study(study_of(tmp_path), planned, tmp_path / "out")


def test_a_refused_study_leaves_no_empty_folder(tmp_path: Path) -> None:
    images = study_of(tmp_path, STUDY.replace("tiny: digits", "tiny: tiny-imagenet-16px"))
    nowhere, out = Selection(overrides=("data.root=nowhere",)), tmp_path / "studies"
    for left in (set[str](), {"lock", "runs", "runs/one", "cells", "logs"}):
        for place in left - {"lock"}:
            (out / place).mkdir(parents=True, exist_ok=True)
        with pytest.raises(GraceError, match="'nowhere' does not exist"):
            make_study(images, nowhere, out, Unwatched())
        with pytest.raises(GraceError, match="'nowhere' does not exist"):
            submit_study(images, nowhere, out, arguments=(), options=())
        assert {str(path.relative_to(out)) for path in out.rglob("*")} == left
        assert out.exists() == bool(left)


def test_runs_made_elsewhere_are_found_and_copied(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unwritten: None
) -> None:
    out, _, _ = whole
    elsewhere = tmp_path / "deep" / "runs"
    shutil.copytree(out / "runs", elsewhere)
    before = sorted((path, path.stat().st_mtime_ns) for path in elsewhere.rglob("*"))
    study, new = study_of(tmp_path), tmp_path / "new"
    monkeypatch.setattr("grace.studies.study.carry_out", carry_out_here)
    watcher = Started()
    made = make_study(study, Selection(), new, watcher, others=[tmp_path / "deep"])
    assert watcher.names == []
    assert {record.directory.parent for record in made.records} == {new / "runs"}
    assert sorted((path, path.stat().st_mtime_ns) for path in elsewhere.rglob("*")) == before
    # They are found without that folder from now on.
    assert plan_study(study, Selection(), new).left == ()


def test_a_run_brings_the_one_that_trained_its_first_task(
    whole: Whole, tmp_path: Path, unwritten: None
) -> None:
    """The network that was trained here, on another machine, has other bits."""
    trainer, runs = record_of(whole[1], "der"), tmp_path / "new" / "runs"
    trained, taken = (first_network(record_of(whole[1], row)) for row in ("der", "IFL"))
    assert trained is not None
    assert taken == replace(trained, is_taken=True)
    tasks = shutil.copytree(trainer.directory, runs / ("f" * 64)) / "tasks.jsonl"
    tasks.write_text(tasks.read_text().replace(trained.sha256, "0" * 64))
    made = make_study(
        study_of(tmp_path),
        Selection(rows=("IFL",)),
        tmp_path / "new",
        Unwatched(),
        others=[whole[0] / "runs"],
    )
    assert made.failures == {}
    assert trainer.directory.name in {place.name for place in runs.iterdir()}


@pytest.mark.parametrize("written", [(), ("tasks.jsonl",)])
def test_a_copy_that_was_cut_off_is_made_again(
    whole: Whole, tmp_path: Path, written: tuple[str, ...]
) -> None:
    """Another task of an array job may be making it at the same moment."""
    record, place = record_of(whole[1], "der"), tmp_path / "runs" / "der"
    place.mkdir(parents=True)
    for name in written:
        (place / name).write_text("{")
    copied = RunStore(tmp_path / "runs").adopt(record, "der")
    assert (copied.directory, copied.tasks) == (place, record.tasks)


def test_a_run_with_other_versions_is_made_again(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"grace": "0.0.1"}
    monkeypatch.setattr("grace.studies.resolving.collect_versions", lambda: other)
    states = {p.name: p.state for p in plan_study(study_of(tmp_path), Selection(), whole[0]).runs}
    assert states["der tiny s1"] == "made differently"
    assert states["replay tiny s1"] == "waiting"


@pytest.mark.parametrize("how", ["on other images", "with other versions"])
def test_runs_that_are_made_again_are_told_of_first(
    how: str, whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(runs: Sequence[ExperimentSettings], **more: dict[str, str]) -> list[dict[str, str]]:
        return [{**own, "protocol": "other"} for own in identify(runs, **more)]

    if how == "on other images":
        monkeypatch.setattr("grace.studies.study_runs.identify", other)
    else:
        monkeypatch.setattr("grace.studies.resolving.collect_versions", lambda: {"grace": "0.0.1"})
    cells = study_cells(study_of(tmp_path), Selection(rows=("der", "IFL")))
    with pytest.warns(GraceWarning, match=f"^2 runs with these .* made {how}: made again$"):
        StudyRuns(cells, tmp_path / "studies", [whole[0]], Unwatched())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        StudyRuns(cells, tmp_path / "others", (), Unwatched())


def test_without_the_images_runs_are_found_by_their_settings(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unwritten: None
) -> None:
    def gone(*_: object, **__: object) -> None:
        raise GraceError("the images are gone")

    monkeypatch.setattr("grace.studies.study_runs.identify", gone)
    made = make_study(study_of(tmp_path), Selection(), whole[0], Unwatched())
    assert len(made.found) == 8
    assert "found by their settings: the images are gone" in made.notes[0]
    with pytest.raises(GraceError, match="the images are gone"):
        make_study(study_of(tmp_path), Selection(seeds=(9,)), whole[0], Unwatched())


def test_a_failed_run_leaves_a_dash_and_what_needs_it_is_named(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = copy_without(whole, tmp_path, "der", "replay")

    def fail(source: JobSource, at_once: int, watcher: Watcher, **_: object) -> None:
        while (job := source.take([])) is not None:
            source.ended(job, "no room")

    monkeypatch.setattr("grace.studies.study.carry_out", fail)
    made = make_study(study_of(tmp_path), Selection(), out, Unwatched())
    assert made.failures == {"der tiny s1": "no room", "replay tiny s1": "it needs der tiny s1"}
    table = (out / "mine" / "table.md").read_text()
    assert "| der | 0 | – | – | – | – |" in table
    assert "not all runs are finished: der, replay" in table


def test_an_interrupted_study_writes_what_it_has_and_goes_on(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = copy_without(whole, tmp_path, "-FL")
    (out / "mine" / "table.md").unlink()
    with interrupted(study, "carry_out"):
        make_study(study_of(tmp_path), Selection(), out, Unwatched())
    assert (out / "mine" / "table.md").is_file()
    monkeypatch.setattr("grace.studies.study.carry_out", carry_out_here)
    watcher = Started()
    assert make_study(study_of(tmp_path), Selection(), out, watcher).failures == {}
    assert watcher.names == ["-FL tiny s1"]
    held = record_of(whole[1], "-FL").directory.name
    assert read_record(out / "runs" / held).complete


def test_a_run_of_grace_run_is_a_cell(whole: Whole, tmp_path: Path, tiny_backbones: None) -> None:
    text = yaml_text.parse(STUDY, "study")
    text["rows"] = {"mine": {"method": "replay"}}
    text |= {"claims": [], "reference": ""}
    study = StudySettings.model_validate(text | {"name": "other"})
    [cell] = study_cells(study, Selection())
    from grace.studies.study_cells import settings_of

    settings = settings_of(cell.run, lambda needed: None)
    assert settings is not None
    run_experiment(settings, tmp_path / "mine")
    planned = plan_study(study, Selection(), tmp_path / "studies", [tmp_path])
    assert [run.state for run in planned.runs] == ["done"]
    assert planned.runs[0].record == tmp_path / "mine"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("{", "", "is damaged"),
        ('"run": "', '"run": "../', "fingerprints.run: it has another form"),
        ('"run": "', '"walk": "', "has no fingerprint"),
    ],
)
def test_records_that_cannot_be_read_are_named(
    old: str, new: str, why: str, whole: Whole, tmp_path: Path, unwritten: None
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
    with pytest.warns(LeftOutWarning, match=expected):
        plan = plan_study(study, chosen, tmp_path / "studies", [strange])
    assert [run.state for run in plan.runs] == ["left"]
    with pytest.warns(LeftOutWarning, match=expected):
        StudyRuns(study_cells(study, chosen), tmp_path / "studies", [strange], Unwatched())


def test_a_damaged_record_is_served_by_a_whole_one_or_named_with_what_to_do(
    whole: Whole,
    tmp_path: Path,
    unwritten: None,
    tiny_backbones: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = copy_without(whole, tmp_path) / "runs" / record_of(whole[1], "der").directory.name
    lines = (bad / "tasks.jsonl").read_text()
    (bad / "tasks.jsonl").write_text(lines.replace('"backbones": 2', '"backbones": 7', 1))
    remedy = f"remove {bad} and run it again"
    with pytest.raises(GraceError, match=f"backbones go from 1 to 7: {remedy}"):
        read_record(bad)
    study, chosen, out = study_of(tmp_path), Selection(rows=("der",)), tmp_path / "studies"
    with pytest.warns(LeftOutWarning, match=f"^1 record cannot be used .* {bad}"):
        made = make_study(study, chosen, out, Unwatched(), others=[whole[0] / "runs"])
    assert record_of(made, "der").directory.parent == whole[0] / "runs"
    monkeypatch.setattr("grace.studies.study.carry_out", carry_out_here)
    with pytest.warns(LeftOutWarning), pytest.raises(GraceError, match=remedy):
        make_study(study, chosen, out, Unwatched())


def test_a_search_takes_known_pairs_and_makes_what_it_chooses(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna", reason="the search extra is not installed")
    out = copy_without(whole, tmp_path)
    monkeypatch.setattr("grace.studies.study.carry_out", carry_out_here)
    wanted = SearchSettings(3)
    text = yaml_text.parse(STUDY, "study")
    text["rows"]["pairs"]["grid"]["method.threshold"] = [0.3, 0.9]
    study = StudySettings.model_validate(text | {"name": "mine"})
    made = make_study(study, Selection(), out, Unwatched(), search=wanted, at_once=1)
    assert made.failures == {}
    assert made.directory == out / "mine-search"
    # The grid's runs stand for its two pairs; three more were chosen.
    rows = [cell.row for cell in made.cells]
    assert len(rows) >= 3
    assert {cell.run for cell in made.cells} == set(made.found)
    assert all(any(row in made.study.grid_rows(name) for name in made.study.rows) for row in rows)
    assert (made.directory / "figures" / "front.svg").is_file()
    assert "Optuna" in (made.directory / "summary.md").read_text()
    assert (made.directory / "search.journal").is_file()
    monkeypatch.setattr("grace.studies.study.carry_out", lambda *_, **__: pytest.fail("made"))
    again = make_study(study, Selection(), out, Unwatched(), search=wanted, at_once=1)
    assert {cell.row for cell in again.cells} == set(rows)
