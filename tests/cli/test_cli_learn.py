"""``grace learn``: creation, updates, rejections, interruptions, refusals, and what it says."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grace.engine import phase_run
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.grace import Grace
from support.commands import call
from support.learn_calls import FINETUNE, GRACE, TINY, files, learn, refused
from support.learn_calls import first as first
from support.learn_calls import made as made
from support.picture_folders import folder, picture
from support.tiny_streams import tiny_backbones as tiny_backbones

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def facts_of(lines: list[str]) -> dict[str, str]:
    """The facts of a page, by their labels."""
    parts = [line.split("  ", 1) for line in lines if "  " in line and line[0] != " "]
    return {label: text.strip() for label, text in parts}


def test_the_oldest_versions_go_also_if_nothing_is_learnt(
    first: tuple[Path, Path], tmp_path: Path
) -> None:
    """0.001 MB holds no version, so that only the one in use stays."""
    _, model = first
    more, home = folder(tmp_path / "more", "cat", "dog"), ModelStore.open(model)
    gone = ["gate.min_new=100", "--max-disk-mb", 0.001]
    lines = learn(more, "--model", model, *gone, code=3).stdout.splitlines()
    assert lines[0].endswith("stays at version 1, version 2 with this update was removed")
    assert lines[-1] == "to keep it, give a larger --max-disk-mb"
    assert home.numbers() == [1]
    learn(more, "--model", model)
    assert "removed" not in learn(more, "--model", model, "--max-disk-mb", 1000).stdout
    result = learn(more, "--model", model, "--max-disk-mb", 0.001)
    assert "nothing to do" in result.stdout
    assert "removed    version 1, for --max-disk-mb" in result.stdout
    size = sum(path.stat().st_size for path in model.glob("[ov]*s/*")) / 1e3
    (line,) = (line for line in result.stderr.splitlines() if line.startswith("warning"))
    assert f"what must stay takes {size:.0f} kB, more than the 0.001 MB" in line
    assert home.current() == home.numbers()[0]


class TestCreation:
    def test_it_makes_a_learner_and_sums_up(self, made: tuple[Path, Path, Any]) -> None:
        _, model, result = made
        lines = result.stdout.splitlines()
        assert lines[0].startswith("Learnt 2 new classes in ")
        assert lines[0].endswith(f"s: '{model}' is at version 1")
        facts = facts_of(lines)
        # 12 images of each class, a fifth of them held out: 2 of 12.
        assert (facts["new classes"], facts["images"], facts["held out"]) == ("ant, bee", "20", "4")
        assert (facts["why"], facts["backbones"]) == ("trained afresh", "1")
        assert facts["exemplars"] == "20"
        assert f"ask it    grace predict {model} IMAGES" in lines
        assert "update: 2 new classes (ant, bee)" in result.stderr
        assert "update: base, 2 epochs over 20 images" in result.stderr

    def test_settings_of_a_new_learner(self, tmp_path: Path) -> None:
        images = folder(tmp_path / "images", "ant", "bee", side=20)
        options = ["method=replay", "memory.size=6", "data.channels=1", "seed=7"]
        # A later setting wins over the first.
        options += ["memory.validation=1", "data.image_size=12", "--json"]
        model = tmp_path / "model"
        told = json.loads(learn(images, "--model", model, *TINY, *options).stdout)
        creation = ModelStore.open(model).creation
        assert (creation.shape, creation.settings.method.name) == ((1, 12, 12), "replay")
        assert set(creation.settings.seeds.model_dump().values()) == {7}
        assert (told["num_images"], told["num_held_out"], told["num_exemplars"]) == (22, 2, 6)

    def test_a_ceiling_leaves_the_rest_to_exemplars(self, tmp_path: Path) -> None:
        model, images = tmp_path / "model", tmp_path / "images"
        folder(images / "train", "ant", "bee")
        folder(images / "test", "ant", "bee", count=4, seed=1)
        options = [*TINY, "memory.validation=3", "--max-mb", 2, "--json"]
        told = json.loads(learn(images, "--model", model, *options).stdout)
        assert ModelStore.open(model).creation.settings.memory.size is None
        # The test images are held out.
        assert (told["num_images"], told["num_held_out"], told["num_exemplars"]) == (24, 6, 24)
        # All its objects, each once.
        size = sum(len(c) for name, c in files(model).items() if name.startswith("objects/"))
        assert told["bytes"] == {"before": 0, "after": size}
        assert 300_000 < size < 1e6 * told["max_mb"] == 2_000_000


class TestUpdates:
    def test_page_and_json_have_the_same_facts(
        self, first: tuple[Path, Path], tmp_path: Path
    ) -> None:
        _, model = first
        result = learn(folder(tmp_path / "more", "cat"), "--model", model)
        lines = result.stdout.splitlines()
        assert lines[0].startswith("Learnt 1 new class in ")
        facts = facts_of(lines)
        assert (facts["images"], facts["held out"], facts["backbones"]) == ("10", "6", "1 → 1")
        assert facts["why"].startswith("compressed: later saturations will be compared with ")
        assert facts["compression cost"].endswith(" points")
        assert all(any(name in line for line in lines) for name in ("ant", "bee", "cat"))
        assert f"go back   grace rollback {model} 1" in lines
        more = folder(tmp_path / "dogs", "dog")
        told = json.loads(learn(more, "--model", model, "--json", "--max-drop", 100).stdout)
        update = ModelStore.open(model).document(3).history[-1]
        assert (told["version"], told["in_use"], told["status"]) == (3, 3, "accepted")
        assert (told["learnt_now"], told["num_classes"]) == (True, 4)
        assert told["new_classes"] == ["dog"]
        assert told["update"] == update.model_dump(mode="json")
        before, after = update.accuracy.old_before, update.accuracy.old_after
        assert told["accuracy_of_old"] == {"before": before, "after": after}
        (ruling,) = told["gate"]
        assert (ruling["limit"], ruling["observed"]) == (100, update.accuracy.drop)
        assert told["bytes"]["after"] == update.num_bytes > told["bytes"]["before"] > 0

    def test_a_class_that_is_not_learnt_is_told_in_one_line(self, tmp_path: Path) -> None:
        model = tmp_path / "model"
        learn(folder(tmp_path / "images", "ant", "bee"), "--model", model, *FINETUNE)
        result = learn(folder(tmp_path / "more", "cat"), "--model", model)
        assert [line for line in result.stderr.splitlines() if "warning" in line.lower()] == [
            "warning: task 2 has one new class and finetune compares new classes with each other "
            "only: it is not learnt"
        ]

    def test_what_was_learnt_already_is_recognised(
        self, first: tuple[Path, Path], tmp_path: Path
    ) -> None:
        images, model = first
        before, home = files(model), ModelStore.open(model)
        assert learn(images, "--model", model, *GRACE).stdout == (
            f"'{model}' has learnt these images already, as version 1: nothing to do (--again "
            "learns them once more)\n"
        )
        assert files(model) == before
        cats, dogs = folder(tmp_path / "cats", "cat"), folder(tmp_path / "dogs", "dog")
        for more in (cats, dogs):
            learn(more, "--model", model)
        # A script of several updates that is run again meets each of them, whatever the gate.
        assert "as version 1: nothing to do" in learn(images, "--model", model).stdout
        again = json.loads(learn(cats, "--model", model, "--max-drop", 99, "--json").stdout)
        assert (again["learnt_now"], again["version"], again["in_use"]) == (False, 2, 3)
        call("rollback", model, 1)
        # Version 2 continues version 1 with these images: learning them would give the same.
        result = learn(cats, "--model", model, "--max-drop", 99)
        assert "already, as version 2, which is in use again" in result.stdout
        assert (home.current(), home.log.changes()[-1].version) == (2, 2)
        # Version 3 continues another one: the images are learnt, and its number is named.
        call("rollback", model, 1)
        result = learn(dogs, "--model", model)
        assert result.stdout.startswith("Learnt 1 new class in ")
        assert "version 3 has learnt these images already, and is not in use" in result.stderr
        assert f"'grace rollback {model} 3' puts it in use" in result.stderr
        fresh = learn(dogs, "--model", model, "--again").stdout.splitlines()
        assert fresh[0].startswith("Learnt fresh images in ")
        assert facts_of(fresh)["refreshed classes"] == "dog"
        assert home.numbers() == [1, 2, 3, 4, 5]

    def test_recipes_may_change_and_what_it_is_made_of_may_not(
        self, first: tuple[Path, Path], tmp_path: Path
    ) -> None:
        images, model = first
        before = files(model)
        refusals = {
            ("seed=4",): "and 'seeds.initialisation=4' cannot change it: its random draws",
            ("method=der",): "method.name grace, and 'method.name=der' cannot change it: ",
            ("data.image_size=8",): "16, and 'data.image_size=8' cannot change it: ",
            ("--experiment", "digits"): "name folder, and 'name=digits' cannot change it",
            # The experiment itself has another backbone than the learner was given.
            ("--experiment", "folder"): "' cannot change it: ",
        }
        for options, says in refusals.items():
            error = refused(images, "--model", model, *options)
            assert f"error: '{model}' was made with " in error
            assert says in error
            assert error.endswith(": leave it out, or choose another directory for the learner")
        assert "did you mean 'method.threshold'?" in refused(
            "nowhere", "--model", model, "method.treshold=1"
        )
        assert files(model) == before
        changes = ["method.grow.epochs=2", "method.compress.lr=0.02", "engine.eval_batch_size=5"]
        learn(folder(tmp_path / "second", "cat"), "--model", model, *changes)
        # An update without them keeps to them.
        learn(folder(tmp_path / "third", "dog"), "--model", model)
        settings = ModelStore.open(model).document(3).settings
        assert isinstance(settings.method, Grace.Settings)
        assert (settings.method.grow.epochs, settings.method.compress.lr) == (2, 0.02)
        assert (settings.method.compress.epochs, settings.method.base.batch_size) == (1, 8)
        assert (settings.engine.eval_batch_size, settings.engine.threads) == (5, 1)


class TestGate:
    def test_a_rejected_update_is_kept_beside(self, tmp_path: Path) -> None:
        model, images = tmp_path / "model", folder(tmp_path / "first", "ant", "bee", count=20)
        # It keeps no images, and forgets.
        epochs = ["method.base.epochs=8", "method.update.epochs=8"]
        learn(images, "--model", model, *FINETUNE, *epochs)
        more = folder(tmp_path / "more", "cat", "dog", count=20)
        before = files(model)
        result = learn(more, "--model", model, "--max-drop", 0, code=3)
        lines = result.stdout.splitlines()
        assert lines[0] == f"Rejected: '{model}' stays at version 1, version 2 holds it"
        assert "can show 62.5 points at best, set it so\n" in result.stderr
        (ruling,) = ModelStore.open(model).document(2).history[-1].rulings
        assert any(line.startswith("gate       rejected: the old classes lost ") for line in lines)
        assert ruling.observed is not None
        assert ruling.observed > 0
        assert lines[-1] == f"use it anyway   grace rollback {model} 2"
        after = files(model)
        assert after.pop("history.jsonl").startswith(before.pop("history.jsonl"))
        assert after.items() >= before.items()
        assert all(name.startswith(("versions/", "objects/")) for name in set(after) - set(before))

        # The same again trains nothing, nor does it name the rejected version.
        again = learn(more, "--model", model, "--max-drop", 0, "--json", code=3)
        told = json.loads(again.stdout)
        assert (told["version"], told["in_use"], told["learnt_now"]) == (2, 1, False)
        anew = learn(more, "--model", model, "--max-drop", 1, "--again", code=3)
        assert "learnt these images already" not in again.stderr + anew.stderr
        # With a wider gate they are trained again, and a command would have done.
        wide = learn(more, "--model", model, "--max-drop", 100)
        assert "gate       passed: the old classes lost " in wide.stdout
        assert f"and was rejected: 'grace rollback {model} 3' puts it in use\n" in wide.stderr
        assert call("rollback", model, 2).exit_code == 0
        assert Learner.load(model).class_names == ["ant", "bee", "cat", "dog"]
        used = learn(more, "--model", model, "--max-drop", 0)
        assert "has learnt these images already, as version 2" in used.stdout

    def test_a_gate_without_images_to_judge_by(self, tmp_path: Path) -> None:
        images = folder(tmp_path / "images", "ant", "bee")
        options = [*TINY, "memory.validation=0", "--max-drop", 1]
        result = learn(images, "--model", tmp_path / "model", *options)
        warning = "warning: no images are held out, so that every update is accepted: "
        assert f"{warning}hold some out by memory.validation=50" in result.stderr
        assert "accuracy" not in result.stdout


def die(*_: Any) -> None:
    raise KeyboardInterrupt


def kept_work(model: Path) -> dict[str, bytes]:
    """The files of a model, without the lock and without objects, which no version names yet."""
    found = files(model).items()
    return {name: data for name, data in found if not name.startswith(("lock", "objects/"))}


class TestInterruptions:
    """The process dies when all training is over and nothing is saved yet, or before any work."""

    def test_the_same_command_goes_on_and_another_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        images, model = folder(tmp_path / "images", "ant", "bee"), tmp_path / "model"
        with monkeypatch.context() as patch:
            patch.setattr(ModelStore, "write", die)
            result = learn(images, "--model", model, *GRACE, code=130)
        assert "the same command will go on from here" in result.stderr
        assert ModelStore.open(model).numbers() == []
        before = kept_work(model)
        other = [images, "--model", model, *TINY, "method=replay"]
        error = refused(*other)
        assert "method.name grace, not replay" in error
        assert error.endswith(": leave it out, or add --discard to begin anew")
        more = folder(tmp_path / "more", "ant", "cat")
        assert refused(more, "--model", model).endswith(f"learn --model {model} --discard'")
        assert kept_work(model) == before
        copy = Path(shutil.copytree(model, tmp_path / "copy"))
        learn(images, "--model", copy, *TINY, "method=replay", "--discard")
        assert ModelStore.open(copy).document(1).settings.method.name == "replay"
        epochs: list[int] = []
        epoch: Callable[..., Any] = phase_run.PhaseRun.epoch

        def counted(self: Any, number: int, *rest: Any) -> Any:
            epochs.append(number)
            return epoch(self, number, *rest)

        monkeypatch.setattr(phase_run.PhaseRun, "epoch", counted)
        learn(images, "--model", model, *GRACE)
        assert epochs == []
        assert ModelStore.open(model).current() == 1
        assert not ModelStore.open(model).pending()

    def test_without_any_work_nothing_is_left(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        images, model = folder(tmp_path / "images", "ant", "bee"), tmp_path / "model"
        # A process that was killed here had made the learner and begun its first update.
        learner = Learner.create(
            "folder", ["backbone.name=resnet20"], shape=(3, 64, 64), directory=model
        )
        assert learner.home is not None
        learner.home.begin(None, "0" * 64)
        with learner.home.changing():
            before = files(model)
            assert "another process" in refused(images, "--model", model, *GRACE)
            assert files(model) == before
        with monkeypatch.context() as patch:
            patch.setattr(phase_run.PhaseRun, "epoch", die)
            learn(images, "--model", model, *TINY, "method=replay", code=130)
        assert not model.exists()

    def test_a_later_update_goes_on_or_is_dropped(
        self, first: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, model = first
        more, other = folder(tmp_path / "more", "cat"), folder(tmp_path / "other", "dog")
        with monkeypatch.context() as patch:
            patch.setattr(ModelStore, "write", die)
            learn(more, "--model", model, code=130)
        assert "was interrupted" in refused(other, "--model", model)
        dropped = learn("--model", model, "--discard").stdout
        assert dropped == f"dropped the interrupted update of '{model}'\n"
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
            (["method=grce"], "unknown method 'grce'; did you mean 'grace'?"),
            (["--experiment", "foldr"], "did you mean 'folder'?"),
        ],
    )
    def test_a_failed_first_update_leaves_nothing(
        self, made: tuple[Path, Path, Any], tmp_path: Path, options: list[Any], says: str
    ) -> None:
        model = tmp_path / "place" / "model"
        assert says in refused(made[0], "--model", model, *TINY, *options)
        assert not model.exists()

    def test_places_where_no_learner_can_be(self, first: tuple[Path, Path], tmp_path: Path) -> None:
        images = folder(tmp_path / "images", "ant", "bee")
        before = files(tmp_path)
        assert "exists already and is no learner" in refused(images, "--model", images)
        inside = refused(images, "--model", images / "model")
        assert f"lies in '{images}', where it would be taken for a class" in inside
        file = images / "ant" / "000.png"
        assert "exists already and is no learner" in refused(images, "--model", file)
        assert files(tmp_path) == before
        with ModelStore.open(first[1]).changing():
            busy = refused(folder(tmp_path / "more", "cat"), "--model", first[1])
            assert "is being changed by another process" in busy
