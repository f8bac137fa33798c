"""Whole tiny experiments: the record is complete, and its numbers follow from the confusion."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from grace.data.images import Dataset
from grace.engine.trainer import NonFiniteLossError
from grace.methods.finetune import Finetune
from grace.methods.grace import Grace
from grace.methods.replay import Replay
from grace.runs.model import RunRecord
from grace.runs.record import RecordWriter, read_record
from grace.runs.run import run as run_experiment
from grace.settings.experiment import EngineSettings, MemorySettings, ScenarioSettings, SeedSettings
from support.interruptions import interrupted
from support.tiny_streams import dataset, recipe, settings
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")

GRACE = Grace.Settings(base=recipe(4), grow=recipe(3), compress=recipe(3), expand_at=(3,))
SIZES = (3, 2, 1)
IMAGES = dataset(6, train=9, test=5)


def run(method: Any, directory: Path, images: Dataset = IMAGES, **changes: Any) -> RunRecord:
    sections = {"scenario": ScenarioSettings(base=3, increment=2), **changes}
    return run_experiment(settings(method, **sections), directory=directory, dataset=images)


def lines(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "tasks.jsonl").read_text().splitlines()]


def percent(confusion: Sequence[Sequence[int]], classes: Sequence[int]) -> float:
    """Right answers among the test images of some classes."""
    total = sum(sum(confusion[index]) for index in classes)
    return 100 * sum(confusion[index][index] for index in classes) / total


@pytest.fixture(scope="module")
def graces_run(tmp_path_factory: pytest.TempPathFactory, tiny_backbones: None) -> RunRecord:
    """A whole run of GRACE, which tests only read."""
    return run(GRACE, tmp_path_factory.mktemp("runs") / "one")


class TestRecord:
    def test_a_whole_run(self, graces_run: RunRecord) -> None:
        record, directory = graces_run, graces_run.directory
        assert record.complete
        assert (record.info.status, record.info.error) == ("finished", None)
        assert sorted(path.name for path in directory.iterdir()) == ["run.json", "tasks.jsonl"]
        again = read_record(directory)
        assert again.info == record.info
        assert again.tasks == record.tasks
        info = record.info
        assert info.task_sizes == SIZES
        # RandomState(1993).permutation(6), by NumPy.
        import numpy as np

        order = np.random.RandomState(1993).permutation(6).tolist()
        assert info.class_names == tuple(f"label {label}" for label in order)
        assert (info.dataset.num_train, info.dataset.num_test) == (54, 30)
        assert (info.dataset.shape, info.config["method"]["expand_at"]) == ((3, 8, 8), [3])
        assert info.hardware["device"] == "cpu"
        assert info.finished is not None
        assert info.started <= info.finished

        written = lines(directory)
        assert [line["task"] for line in written] == [1, 2, 3]
        assert [line["num_new"] for line in written] == [3, 2, 1]
        assert [line["num_seen"] for line in written] == [3, 5, 6]
        named = [name for line in written for name in line["class_names_new"]]
        assert named == list(info.class_names)
        assert [line["verdict"] for line in written] == ["start", "compress", "grow"]
        assert [line["backbones"] for line in written] == [1, 1, 2]
        assert written[0]["threshold"] is None
        assert [line["threshold"] for line in written[1:]] == pytest.approx([0.6, 0.6 * 0.96])
        assert all(0 < line["saturation"] < 1 for line in written[1:])
        # Memory 13 // 3 = 4 of each class; P = 3/5, B = 9/(9 + 4).
        weight = ((0.6**5 + (9 / 13) ** 5) / 2) ** 0.2
        assert written[1]["merge_weight"] == pytest.approx(weight)
        assert [line["num_exemplars"] for line in written] == [12, 10, 12]
        assert [line["bytes"]["exemplars"] for line in written] == [n * 192 for n in (12, 10, 12)]
        # ResNet-8 has 74,640 parameters; the head (64·b + 1)·K.
        assert [line["parameters"] for line in written] == [
            {"backbones": 74_640 * b, "heads": h, "total": 74_640 * b + h}
            for b, h in ((1, 65 * 3), (1, 65 * 5), (2, 129 * 6))
        ]
        phases = [[phase["name"] for phase in line["phases"]] for line in written]
        assert phases == [
            ["base", "herd", "class means"],
            ["grow", "assess", "compress", "herd", "class means"],
            ["grow", "assess", "herd", "class means"],
        ]
        grown = written[1]["phases"][0]
        assert (grown["epochs"], grown["images"]) == (3, 2 * 9 + 12)
        assert grown["losses"].keys() == {"classification", "auxiliary"}
        for line in written:
            seconds = line["seconds"]
            assert seconds["total"] == pytest.approx(seconds["learn"] + seconds["evaluate"])
            assert 0 < sum(phase["seconds"] for phase in line["phases"]) <= seconds["learn"]

    def test_accuracies_follow_from_the_confusion_on_true_boundaries(
        self, graces_run: RunRecord
    ) -> None:
        boundaries = [range(3), range(3, 5), range(5, 6)]
        for number, line in enumerate(lines(graces_run.directory), start=1):
            confusion, seen = line["confusion"], sum(SIZES[:number])
            assert [(sum(row), len(row)) for row in confusion] == [(5, seen)] * seen
            told, new = line["classifiers"][line["primary"]], seen - SIZES[number - 1]
            assert told["all"] == pytest.approx(percent(confusion, range(seen)))
            assert told["new"] == pytest.approx(percent(confusion, range(new, seen)))
            assert told["old"] == (pytest.approx(percent(confusion, range(new))) if new else None)
            each = [percent(confusion, own) for own in boundaries[:number]]
            assert told["per_task"] == pytest.approx(each)
        assert list(line["classifiers"]) == ["linear", "nearest_mean"]
        # R[t, i] over t for the first two tasks.
        columns = [[row[i] or 0.0 for row in graces_run.matrix[i:]] for i in (0, 1)]
        drops = [max(column) - column[-1] for column in columns]
        assert graces_run.forgetting == pytest.approx(sum(drops) / 2)

    def test_equal_settings_give_equal_records(self, tmp_path: Path, graces_run: RunRecord) -> None:
        one, two = graces_run, run(GRACE, tmp_path / "two")
        assert one.info.fingerprints == two.info.fingerprints
        assert [timeless(line) for line in lines(one.directory)] == [
            timeless(line) for line in lines(tmp_path / "two")
        ]
        other = run(GRACE, tmp_path / "three", seeds=SeedSettings(data=2))
        assert other.info.fingerprints["protocol"] == one.info.fingerprints["protocol"]
        assert other.info.fingerprints["run"] != one.info.fingerprints["run"]
        assert two.tasks[2].phases[0].losses != other.tasks[2].phases[0].losses

    def test_the_record_says_which_precision_auto_chose(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # So that runs of two machines with other instructions are not taken for the same run.
        monkeypatch.setattr("grace.engine.device.computes_in_bfloat16", lambda: True)
        method = Finetune.Settings(base=recipe(), update=recipe())
        engine = settings(method).engine
        auto, named = (
            run(method, tmp_path / name, engine=engine.model_copy(update={"precision": name}))
            for name in ("auto", "bfloat16")
        )
        assert auto.info.config["engine"]["precision"] == "bfloat16"
        assert auto.info.fingerprints == named.info.fingerprints
        assert auto.tasks[0].phases[0].losses == named.tasks[0].phases[0].losses

    def test_the_data_belong_to_the_fingerprint(self, tmp_path: Path) -> None:
        method = Finetune.Settings(base=recipe(), update=recipe())
        one = run(method, tmp_path / "one").info.fingerprints
        other = dataset(6, train=9, test=5)
        other.test.images.pixels[0, 0, 0, 0] ^= 1  # type: ignore[attr-defined]
        two = run(method, tmp_path / "two", other).info.fingerprints
        assert one["protocol"] != two["protocol"]


def timeless(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of the record without what the clock said."""
    kept = {key: value for key, value in line.items() if key != "seconds"}
    kept["phases"] = [
        {key: value for key, value in phase.items() if key != "seconds"} for phase in line["phases"]
    ]
    return kept


class TestFailures:
    def test_a_run_that_fails_says_so_and_why(self, tmp_path: Path) -> None:
        wild = Replay.Settings(base=recipe(2), update=recipe(8, lr=1e30))
        directory = tmp_path / "run"
        with pytest.raises(NonFiniteLossError) as caught:
            run(wild, directory)
        kept = sorted(path.name for path in directory.iterdir())
        assert kept == ["lock", "run.json", "tasks.jsonl"]
        record = read_record(directory)
        assert record.info.status == "failed"
        assert record.info.error == str(caught.value)
        assert "phase 'update'" in str(record.info.error)
        assert not record.complete
        # What was finished before stands.
        assert [task.task for task in record.tasks] == [1]
        assert record.tasks[0].accuracy is not None

    def test_an_interruption_is_a_failure_too(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        interruption = KeyboardInterrupt()
        monkeypatch.setattr("grace.runs.stream.scores", Mock(side_effect=interruption))
        with pytest.raises(KeyboardInterrupt):
            run(Finetune.Settings(base=recipe(), update=recipe()), tmp_path / "run")
        assert interruption.__notes__ == [f"the record of the tasks so far: {tmp_path / 'run'}"]
        info = read_record(tmp_path / "run").info
        assert (info.status, info.error) == ("failed", "KeyboardInterrupt")

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"memory": MemorySettings(size=5)}, "a memory of 5 images is too small for 6 classes"),
            ({"scenario": ScenarioSettings(base=7)}, "scenario.base 7 exceeds the 6 classes"),
            (
                {"scenario": ScenarioSettings(base=2, class_order=(0, 1, 2, 3, 4, 4))},
                "no permutation",
            ),
            ({"engine": EngineSettings(device="cpu", precision="float16")}, "float16"),
        ],
    )
    def test_what_cannot_be_carried_out_leaves_nothing_behind(
        self, tmp_path: Path, changes: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message) as caught:
            run(Replay.Settings(base=recipe(), update=recipe()), tmp_path / "run", **changes)
        assert "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []


class TestResumingWithoutItsCheckpoint:
    """tests/test_nothing_lost.py has the runs that go on from it."""

    @pytest.mark.parametrize("missing", ["checkpoint", "checkpoint/state.safetensors"])
    def test_a_run_begins_anew(self, tmp_path: Path, missing: str) -> None:
        method = Replay.Settings(base=recipe(2), update=recipe(2))
        straight = run(method, tmp_path / "straight")
        with interrupted(RecordWriter, "finish"):
            run(method, tmp_path / "run")
        lost = tmp_path / "run" / missing
        shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
        chosen = settings(method, scenario=ScenarioSettings(base=3, increment=2))
        record = run_experiment(chosen, directory=tmp_path / "run", dataset=IMAGES, resume=True)
        assert record.complete
        assert [timeless(line) for line in lines(tmp_path / "run")] == [
            timeless(line) for line in lines(straight.directory)
        ]
        names = sorted(path.name for path in (tmp_path / "run").iterdir())
        assert names == ["run.json", "tasks.jsonl"]
