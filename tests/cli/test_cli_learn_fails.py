"""``grace learn`` where updates are rejected, interrupted or refused: nothing is in the way."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grace.engine import phase_run
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from support.commands import call
from support.learn_calls import FINETUNE, GRACE, TINY, files, learn, refused
from support.learn_calls import first as first
from support.learn_calls import made as made
from support.picture_folders import folder, picture
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def work_is_done_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process die when all training is over and nothing is saved yet."""

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ModelStore, "write", die)


def count_epochs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    epochs: list[int] = []
    epoch: Callable[..., Any] = phase_run.PhaseRun.epoch

    def counted(self: Any, number: int, *rest: Any) -> Any:
        epochs.append(number)
        return epoch(self, number, *rest)

    monkeypatch.setattr(phase_run.PhaseRun, "epoch", counted)
    return epochs


class TestGate:
    @pytest.fixture
    def forgetful(self, tmp_path: Path) -> tuple[Path, Path]:
        """A learner that keeps no images, and an update that makes it forget."""
        model = tmp_path / "model"
        options = [*FINETUNE, "method.base.epochs=8", "method.update.epochs=8"]
        learn(folder(tmp_path / "first", "ant", "bee", count=20), "--model", model, *options)
        assert ModelStore.open(model).document(1).history[0].accuracy.new_after == 1
        return folder(tmp_path / "more", "cat", "dog", count=20), model

    def test_a_rejected_update_is_kept_beside(self, forgetful: tuple[Path, Path]) -> None:
        more, model = forgetful
        before = files(model)
        result = learn(more, "--model", model, "--max-drop", 0, code=3)
        lines = result.stdout.splitlines()
        assert lines[0] == f"Rejected: '{model}' stays at version 1, version 2 holds it"
        assert "can show 62.5 points at best, set it so\n" in result.stderr
        drop = ModelStore.open(model).document(2).history[-1].accuracy.drop
        assert drop is not None
        assert drop > 0
        assert (
            f"gate       rejected: the old classes lost {drop:.1f} points, 0 allowed "
            "(gate.max_drop)"
        ) in [line.partition(";")[0] for line in lines]
        assert lines[-1] == f"use it anyway   grace rollback {model} 2"
        after = files(model)
        history = after["history.jsonl"]
        assert history.startswith(before["history.jsonl"])
        assert {**after, "history.jsonl": b""}.items() >= {**before, "history.jsonl": b""}.items()
        assert "versions/0002.json" in after
        assert all(name.startswith(("versions/", "objects/")) for name in set(after) - set(before))
        assert Learner.load(model).class_names == ["ant", "bee"]

        told = json.loads(learn(more, "--model", model, "--max-drop", 0, "--json", code=3).stdout)
        assert (told["version"], told["in_use"], told["learnt_now"]) == (2, 1, False)
        assert call("rollback", model, 2).exit_code == 0
        assert Learner.load(model).class_names == ["ant", "bee", "cat", "dog"]
        used = learn(more, "--model", model, "--max-drop", 0)
        assert "has learnt these images already, as version 2" in used.stdout

    def test_a_wider_gate_lets_it_pass(self, forgetful: tuple[Path, Path]) -> None:
        more, model = forgetful
        learn(more, "--model", model, "--max-drop", 0, code=3)
        again = learn(more, "--model", model, "--max-drop", 0, code=3)
        anew = learn(more, "--model", model, "--max-drop", 1, "--again", code=3)
        again = learn(more, "--model", model, "--max-drop", 0, "--json", code=3)
        # Nothing is learnt, or asked to be, so that the rejected version is not named.
        assert "learnt these images already" not in again.stderr + anew.stderr
        told = json.loads(again.stdout)
        assert (told["version"], told["in_use"], told["learnt_now"]) == (3, 1, False)
        result = learn(more, "--model", model, "--max-drop", 100)
        assert "gate       passed: the old classes lost " in result.stdout
        assert ModelStore.open(model).current() == 4
        # They were trained again, and a command would have done.
        assert (
            "warning: version 3 has learnt these images already, and was "
            f"rejected: 'grace rollback {model} 3' puts it in use\n"
        ) in result.stderr

    def test_a_gate_without_images_to_judge_by(self, tmp_path: Path) -> None:
        images = folder(tmp_path / "images", "ant", "bee")
        options = [*TINY, "memory.validation=0", "--max-drop", 1]
        result = learn(images, "--model", tmp_path / "model", *options)
        warning = "warning: no images are held out, so that every update is accepted: "
        assert f"{warning}hold some out by memory.validation=50" in result.stderr
        assert "accuracy" not in result.stdout


def kept_work(model: Path) -> dict[str, bytes]:
    """The files of a model, without the lock and without objects, which no version names yet."""
    return {
        name: data
        for name, data in files(model).items()
        if name != "lock" and not name.startswith("objects/")
    }


class TestInterruptions:
    def test_the_same_command_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        images, model = folder(tmp_path / "images", "ant", "bee"), tmp_path / "model"
        with monkeypatch.context() as patch:
            work_is_done_before(patch)
            result = learn(images, "--model", model, *GRACE, code=130)
        assert "the same command will go on from here" in result.stderr
        assert ModelStore.open(model).numbers() == []
        epochs = count_epochs(monkeypatch)
        learn(images, "--model", model, *GRACE)
        assert epochs == []
        assert ModelStore.open(model).current() == 1
        assert not ModelStore.open(model).pending()

    def test_work_on_a_first_update_is_not_lost_by_other_options(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        images, model = folder(tmp_path / "images", "ant", "bee"), tmp_path / "model"
        with monkeypatch.context() as patch:
            work_is_done_before(patch)
            learn(images, "--model", model, *GRACE, code=130)
        before = kept_work(model)
        other = [images, "--model", model, *TINY, "method=replay"]
        error = refused(*other)
        assert "method.name grace, not replay" in error
        assert error.endswith(": leave it out, or add --discard to begin anew")
        more = folder(tmp_path / "more", "ant", "cat")
        assert refused(more, "--model", model).endswith(f"learn --model {model} --discard'")
        assert kept_work(model) == before
        learn(*other, "--discard")
        assert ModelStore.open(model).document(1).settings.method.name == "replay"

    def test_without_any_work_it_is_made_anew(self, tmp_path: Path) -> None:
        images, model = folder(tmp_path / "images", "ant", "bee"), tmp_path / "model"
        # A process that was killed here had made the learner and begun its first update.
        learner = Learner.create(
            "folder", ["backbone.name=resnet20"], shape=(3, 64, 64), directory=model
        )
        learner.home.begin(None, "0" * 64)
        learn(images, "--model", model, *TINY, "method=replay")
        assert ModelStore.open(model).document(1).settings.method.name == "replay"

    def test_ctrl_c_before_any_work_leaves_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def die(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("grace.engine.phase_run.PhaseRun.epoch", die)
        images, model = folder(tmp_path / "images", "ant", "bee"), tmp_path / "model"
        learn(images, "--model", model, *GRACE, code=130)
        assert not model.exists()

    def test_a_later_update_goes_on_or_is_dropped(
        self, first: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, model = first
        more, other = folder(tmp_path / "more", "cat"), folder(tmp_path / "other", "dog")
        with monkeypatch.context() as patch:
            work_is_done_before(patch)
            learn(more, "--model", model, code=130)
        assert "was interrupted" in refused(other, "--model", model)
        assert learn("--model", model, "--discard").stdout == (
            f"dropped the interrupted update of '{model}'\n"
        )
        learn(other, "--model", model)
        assert ModelStore.open(model).document(2).class_names == ("ant", "bee", "dog")
        assert "there is no interrupted update" in learn("--model", model, "--discard").stdout


class TestRefusals:
    def test_images_that_cannot_be_learnt(self, tmp_path: Path) -> None:
        model = tmp_path / "model"
        assert "'nowhere' does not exist" in refused("nowhere", "--model", model)
        assert "give the folder of the new images" in refused("--model", model)
        empty = folder(tmp_path / "empty", "ant", "bee")
        (empty / "cat").mkdir()
        bare = f"{empty}: class folders without images (1): 'cat'"
        assert bare in refused(empty, "--model", model)
        one = folder(tmp_path / "one", "ant")
        assert "has images of one class, 'ant'" in refused(one, "--model", model)
        bad = folder(tmp_path / "bad", "ant", "bee")
        (bad / "ant" / "000.png").write_bytes(b"no image")
        error = refused(bad, "--model", model)
        assert "000.png" in error
        assert error.endswith("or set data.skip_unreadable=true")
        picture("ant", 1).save(bad / "bee" / "twin.png")
        error = refused(bad, "--model", model, "data.skip_unreadable=true")
        assert error.endswith("or set data.skip_duplicates=true")
        assert not model.exists()

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (["--max-mb", 0.1], "the ceiling is 0.100 MB"),
            (["memory.size=1"], "set memory.size=2"),
            (["--max-drop", 101], "--max-drop"),
            (["method.base.lr=1e30"], "of this phase, method.base.lr=1e+30, or its weight_decay"),
            (["--minutes", 0], "budget.minutes = 0 should be greater than 0"),
            (["seed=-2"], "seed = -2 should be"),
            (["method=grce"], "method = 'grce' should be"),
            (["memory.size=-1"], "memory.size = -1 should be"),
            (["data.channels=2"], "data.channels = 2 should be"),
            (["--experiment", "foldr"], "did you mean 'folder'?"),
        ],
    )
    def test_a_failed_first_update_leaves_nothing(
        self, made: tuple[Path, Path, Any], tmp_path: Path, options: list[Any], says: str
    ) -> None:
        model = tmp_path / "place" / "model"
        assert says in refused(made[0], "--model", model, *TINY, *options)
        assert not model.exists()

    def test_places_where_no_learner_can_be(self, tmp_path: Path) -> None:
        images = folder(tmp_path / "images", "ant", "bee")
        before = files(tmp_path)
        assert "exists already and is no learner" in refused(images, "--model", images)
        inside = refused(images, "--model", images / "model")
        assert f"lies in '{images}', where it would be taken for a class" in inside
        file = images / "ant" / "000.png"
        assert "exists already and is no learner" in refused(images, "--model", file)
        assert files(tmp_path) == before

    def test_one_process_at_a_time(self, first: tuple[Path, Path], tmp_path: Path) -> None:
        _, model = first
        more = folder(tmp_path / "more", "cat")
        with ModelStore.open(model).changing():
            assert "is being changed by another process" in refused(more, "--model", model)
        learn(more, "--model", model)

    def test_a_learner_that_somebody_else_is_making_stays(self, tmp_path: Path) -> None:
        images, model = folder(tmp_path / "images", "ant", "bee"), tmp_path / "model"
        learner = Learner.create("folder", shape=(3, 64, 64), directory=model)
        assert learner.home is not None
        with learner.home.changing():
            before = files(model)
            assert "another process" in refused(images, "--model", model, *GRACE)
            assert files(model) == before
