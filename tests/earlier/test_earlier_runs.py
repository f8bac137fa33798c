"""Runs that an earlier grace left: an unfinished one goes on, a record is read and tabulated."""

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from earlier_files import facts, refuse_unlike, renamed
from grace.base.errors import GraceWarning
from grace.runs import read_record
from grace.runs.run import run_experiment
from grace.settings.experiment import ExperimentSettings
from grace.studies.tables import comparison_table, to_markdown
from support.commands import ran


def pretend_versions(patch: pytest.MonkeyPatch, versions: Any) -> None:
    """Let a run note these versions of Python, torch, … as those that carry it out."""
    # CHANGE where a run asks for versions elsewhere.
    for place in ("grace.runs.run", "grace.runs.writing"):
        patch.setattr(f"{place}.collect_versions", lambda: dict(versions))


def settings(directory: Path) -> ExperimentSettings:
    """The settings that a record names."""
    return ExperimentSettings.model_validate(facts(directory / "run.json")["config"])


def timeless(directory: Path) -> list[Any]:
    """The lines of a record as they were written, without what the clock says."""
    text = (directory / "tasks.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line, object_hook=renamed) for line in text.splitlines()]
    for line in lines:
        del line["seconds"]
        for phase in line["phases"]:
            del phase["seconds"], phase["earlier"]
    return lines


@pytest.fixture
def place(written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder that the run was begun in, with its images."""
    for name in ("images", "run"):
        shutil.copytree(written / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("tiny_network")
class TestUnfinished:
    def test_it_goes_on_and_ends_with_the_numbers_of_the_straight_run(
        self, place: Path, written: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begun = read_record(Path("run"))
        assert (len(begun.tasks), begun.info.status) == (1, "running")
        pretend_versions(monkeypatch, begun.info.versions)
        # The record of that time names the processor in another way.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GraceWarning)
            record = run_experiment(settings(Path("run")), Path("run"), resume=True)
        straight = read_record(written / "run-straight")
        assert record.complete
        assert record.info.started == begun.info.started
        # The line that was there stays as it was.
        assert record.tasks[0] == begun.tasks[0]
        refuse_unlike(timeless(Path("run")), timeless(written / "run-straight"))
        assert record.info.fingerprints == straight.info.fingerprints
        assert sorted(path.name for path in Path("run").iterdir()) == ["run.json", "tasks.jsonl"]

    def test_under_another_version_it_is_refused_and_left_as_it_is(
        self, place: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The message names the version that differs, and what to do."""
        files = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
        versions = dict(read_record(Path("run")).info.versions)
        pretend_versions(monkeypatch, versions | {"torch": "0.0.1"})
        with pytest.raises(
            ValueError,
            match=r"^run holds a run made with other versions, torch .* \(here 0\.0\.1\): install",
        ):
            run_experiment(settings(Path("run")), Path("run"), resume=True)
        assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == files


class TestRecord:
    def test_it_is_read_and_its_numbers_follow_from_its_confusions(self, written: Path) -> None:
        record = read_record(written / "run-straight")
        assert record.complete
        assert (record.method, record.seed, record.primary) == ("grace", 1, "linear")
        assert record.info.task_sizes == (2, 1, 1)
        assert set(record.info.class_names) == {"ant", "bee", "cat", "dog"}
        assert [task.verdict for task in record.tasks] == ["start", "compress", "compress"]
        # Two test images of each class; the right ones stand on the diagonals.
        accuracies = []
        for task, num_seen in zip(record.tasks, (2, 3, 4), strict=True):
            assert task.confusion is not None
            right = sum(task.confusion[index][index] for index in range(num_seen))
            accuracies.append(100 * right / (2 * num_seen))
        assert record.accuracies() == pytest.approx(accuracies)
        assert record.last == pytest.approx(accuracies[-1])
        assert record.average == pytest.approx(sum(accuracies) / 3)

    def test_it_is_tabulated(self, written: Path, tmp_path: Path) -> None:
        record = read_record(written / "run-straight")
        table = comparison_table([record])
        keys = [column.key for column in table.columns]
        cells: dict[str, Any] = dict(zip(keys, table.rows[0].cells, strict=True))
        assert cells["last"].mean == record.last
        assert cells["average"].mean == record.average
        assert cells["backbones"].mean == 1
        assert f"{record.average:.2f}" in to_markdown(table)
        page = tmp_path / "page.html"
        ran("report", written / "run-straight", "-o", page)
        assert f"{record.average:.2f}" in page.read_text(encoding="utf-8")

    def test_one_that_is_not_finished_is_left_out(self, written: Path) -> None:
        table = comparison_table([read_record(written / "run")])
        assert "unfinished" in table.notes[0]
