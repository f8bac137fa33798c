"""``grace learn``: creation, updates, and what it says of them."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

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


def pixels(name: str, count: int, seed: int) -> torch.Tensor:
    """Images of a class that nobody has seen."""
    images = [np.asarray(picture(name, 1000 * seed + number)) for number in range(count)]
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


def facts_of(lines: list[str]) -> dict[str, str]:
    """The facts of a page, by their labels."""
    parts = [line.split("  ", 1) for line in lines if "  " in line and line[0] != " "]
    return {label: text.strip() for label, text in parts}


class TestAllVersionsTogether:
    """``--max-disk-mb``; 0.001 MB holds no version, so that only the one in use stays."""

    def test_the_oldest_go_also_if_nothing_is_learnt(
        self, first: tuple[Path, Path], tmp_path: Path
    ) -> None:
        _, model = first
        more = folder(tmp_path / "more", "cat", "dog")
        learn(more, "--model", model)
        home = ModelStore.open(model)
        assert home.numbers() == [1, 2]
        assert "removed" not in learn(more, "--model", model, "--max-disk-mb", 1000).stdout
        result = learn(more, "--model", model, "--max-disk-mb", 0.001)
        assert "nothing to do" in result.stdout
        assert "removed    version 1, for --max-disk-mb" in result.stdout
        size = sum(path.stat().st_size for path in model.glob("[ov]*s/*")) / 1e3
        (line,) = (line for line in result.stderr.splitlines() if line.startswith("warning"))
        assert f"what must stay takes {size:.0f} kB, more than the 0.001 MB" in line
        assert home.numbers() == [2]

    def test_a_rejected_version_that_had_to_go_is_not_offered(
        self, first: tuple[Path, Path], tmp_path: Path
    ) -> None:
        """The summary named a command that could not work."""
        _, model = first
        options = ["gate.min_new=100", "--max-disk-mb", 0.001]
        result = call("learn", folder(tmp_path / "more", "cat", "dog"), "--model", model, *options)
        assert result.exit_code == 3
        lines = result.stdout.splitlines()
        assert lines[0].endswith("stays at version 1, version 2 with this update was removed")
        assert lines[-1] == "to keep it, give a larger --max-disk-mb"
        assert "rollback" not in result.stdout
        assert ModelStore.open(model).numbers() == [1]


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
        creation = ModelStore.open(model).creation
        settings = creation.settings
        assert (creation.shape, settings.name, settings.method.base.epochs) == (
            (3, 16, 16),
            "folder",
            2,
        )
        assert "update: 2 new classes (ant, bee)" in result.stderr
        assert "update: base, 2 epochs over 20 images" in result.stderr

    def test_settings_of_a_new_learner(self, tmp_path: Path) -> None:
        images = folder(tmp_path / "images", "ant", "bee", side=20)
        options = ["method=replay", "memory.size=6", "data.channels=1", "seed=7"]
        # A later setting wins over the first.
        options += ["memory.validation=1", "data.image_size=12", "--json"]
        model = tmp_path / "model"
        result = learn(images, "--model", model, *TINY, *options)
        home = ModelStore.open(model)
        settings = home.creation.settings
        assert home.creation.shape == (1, 12, 12)
        assert settings.method.name == "replay"
        assert (settings.memory.size, settings.memory.validation) == (6, 1)
        assert set(settings.seeds.model_dump().values()) == {7}
        told = json.loads(result.stdout)
        assert (told["num_images"], told["num_held_out"], told["num_exemplars"]) == (22, 2, 6)

    def test_a_ceiling_leaves_the_rest_to_exemplars(self, tmp_path: Path) -> None:
        images = folder(tmp_path / "images", "ant", "bee")
        model = tmp_path / "model"
        told = json.loads(learn(images, "--model", model, *TINY, "--max-mb", 2, "--json").stdout)
        assert ModelStore.open(model).creation.settings.memory.size is None
        assert told["max_mb"] == 2
        assert 300_000 < told["bytes"]["after"] < 2_000_000
        assert told["num_exemplars"] == 20
        # All its objects, each once.
        size = sum(len(c) for name, c in files(model).items() if name.startswith("objects/"))
        assert told["bytes"]["after"] == size

    def test_test_images_are_held_out(self, tmp_path: Path) -> None:
        folder(tmp_path / "images" / "train", "ant", "bee")
        folder(tmp_path / "images" / "test", "ant", "bee", count=4, seed=1)
        options = [*TINY, "memory.validation=3", "--json"]
        result = learn(tmp_path / "images", "--model", tmp_path / "model", *options)
        told = json.loads(result.stdout)
        assert (told["num_images"], told["num_held_out"]) == (24, 6)


class TestUpdates:
    def test_one_new_class(self, first: tuple[Path, Path], tmp_path: Path) -> None:
        _, model = first
        result = learn(folder(tmp_path / "more", "cat"), "--model", model)
        lines = result.stdout.splitlines()
        assert lines[0].startswith("Learnt 1 new class in ")
        assert lines[0].endswith("is at version 2")
        facts = facts_of(lines)
        assert (facts["images"], facts["held out"], facts["backbones"]) == ("10", "6", "1 → 1")
        assert facts["why"] == (
            "compressed: later saturations will be compared with the first one of this backbone"
        )
        assert facts["compression cost"].endswith(" points")
        assert [line.split()[0] for line in lines[lines.index("classes") + 2 :][:3]] == [
            "ant",
            "bee",
            "cat",
        ]
        assert f"go back   grace rollback {model} 1" in lines

    def test_a_class_that_is_not_learnt_is_told_in_one_line(self, tmp_path: Path) -> None:
        model = tmp_path / "model"
        learn(folder(tmp_path / "images", "ant", "bee"), "--model", model, *FINETUNE)
        result = learn(folder(tmp_path / "more", "cat"), "--model", model)
        assert [line for line in result.stderr.splitlines() if "warning" in line.lower()] == [
            "warning: task 2 has one new class and finetune compares new classes with each other "
            "only: it is not learnt"
        ]

    def test_json_has_the_same_facts(self, first: tuple[Path, Path], tmp_path: Path) -> None:
        _, model = first
        more = folder(tmp_path / "more", "cat", "dog")
        told = json.loads(learn(more, "--model", model, "--json", "--max-drop", 100).stdout)
        update = ModelStore.open(model).document(2).history[-1]
        assert (told["version"], told["in_use"], told["status"]) == (2, 2, "accepted")
        assert told["learnt_now"] is True
        assert told["new_classes"] == ["cat", "dog"]
        assert told["num_classes"] == 4
        assert told["update"]["outcome"]["verdict"] == "compress"
        assert told["why"].startswith("compressed: ")
        assert told["backbones"] == {"before": 1, "after": 1}
        accuracy = told["accuracy_of_old"]
        assert accuracy == {
            "before": update.accuracy.old_before,
            "after": update.accuracy.old_after,
        }
        (ruling,) = told["gate"]
        assert (ruling["limit"], ruling["observed"]) == (100, update.accuracy.drop)
        assert told["bytes"]["after"] == update.num_bytes > told["bytes"]["before"] > 0

    def test_the_same_command_twice(self, first: tuple[Path, Path], tmp_path: Path) -> None:
        images, model = first
        before = files(model)
        same = learn(images, "--model", model, *GRACE)
        assert same.stdout == (
            f"'{model}' has learnt these images already, as version 1: nothing to do (--again "
            "learns them once more)\n"
        )
        assert files(model) == before
        # A script of several updates that is run again meets each of them, whatever the gate.
        more = folder(tmp_path / "more", "cat")
        learn(more, "--model", model)
        assert "as version 1: nothing to do" in learn(images, "--model", model).stdout
        again = learn(more, "--model", model, "--max-drop", 99)
        assert "as version 2: nothing to do" in again.stdout
        told = json.loads(learn(more, "--model", model, "--json").stdout)
        assert (told["learnt_now"], told["version"]) == (False, 2)
        fresh = learn(images, "--model", model, "--again").stdout
        assert fresh.startswith("Learnt fresh images in ")
        facts = facts_of(fresh.splitlines())
        assert (facts["refreshed classes"], facts["why"]) == ("ant, bee", "refreshed")
        assert "new classes" not in facts
        assert ModelStore.open(model).numbers() == [1, 2, 3]

    def test_what_other_versions_learnt_is_recognised(
        self, first: tuple[Path, Path], tmp_path: Path
    ) -> None:
        _, model = first
        cats, dogs = folder(tmp_path / "cats", "cat"), folder(tmp_path / "dogs", "dog")
        for images in (cats, dogs):
            learn(images, "--model", model)
        call("rollback", model, 1)
        # Version 2 continues version 1 with these images: learning them would give the same.
        result = learn(cats, "--model", model, "--max-drop", 99)
        assert "already, as version 2, which is in use again" in result.stdout
        assert ModelStore.open(model).current() == 2
        assert ModelStore.open(model).log.changes()[-1].version == 2
        # Version 3 continues another one: the images are learnt, and its number is named.
        call("rollback", model, 1)
        result = learn(dogs, "--model", model)
        assert result.stdout.startswith("Learnt 1 new class in ")
        assert "version 3 has learnt these images already, and is not in use" in result.stderr
        assert f"'grace rollback {model} 3' puts it in use" in result.stderr
        assert ModelStore.open(model).current() == 4
        call("rollback", model, 1)
        assert learn(cats, "--model", model, "--again").stdout.startswith("Learnt 1 new class")

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            (["seed=4"], "and 'seeds.initialisation=4' cannot change it: its random draws"),
            (["method=der"], "method.name grace, and 'method.name=der' cannot change it: "),
            (["data.image_size=8"], "16, and 'data.image_size=8' cannot change it: "),
            (["--experiment", "digits"], "name folder, and 'name=digits' cannot change it"),
            # The experiment itself has another backbone than the learner was given.
            (["--experiment", "folder"], "' cannot change it: "),
        ],
    )
    def test_what_a_learner_is_made_of_cannot_change(
        self, first: tuple[Path, Path], options: list[Any], says: str
    ) -> None:
        images, model = first
        before = files(model)
        error = refused(images, "--model", model, *options)
        assert f"error: '{model}' was made with " in error
        assert says in error
        assert error.endswith(": leave it out, or choose another directory for the learner")
        assert files(model) == before


def test_it_recognises_what_it_was_taught(tmp_path: Path) -> None:
    model = tmp_path / "model"
    options = [*TINY, "method=replay", "method.update.epochs=12", "method.base.epochs=12"]
    learn(folder(tmp_path / "first", "ant", "bee", count=20), "--model", model, *options)
    learn(folder(tmp_path / "more", "cat", count=20), "--model", model, "method.update.epochs=12")
    learner = Learner.load(model)
    for name in ("ant", "bee", "cat"):
        assert learner.predict(pixels(name, 5, seed=9)).count(name) >= 4


def test_recipes_may_change_between_updates(made: tuple[Path, Path, Any], tmp_path: Path) -> None:
    model = Path(shutil.copytree(made[1], tmp_path / "model"))
    images = folder(tmp_path / "second", "cat")
    # What every call must agree on still counts.
    assert "method.name=der" in refused(images, "--model", model, "method=der")
    learn(images, "--model", model, "method.grow.epochs=2", "method.compress.lr=0.02")
    settings = ModelStore.open(model).document(2).settings
    assert isinstance(settings.method, Grace.Settings)
    assert (settings.method.grow.epochs, settings.method.compress.lr) == (2, 0.02)
    assert (settings.method.compress.epochs, settings.method.base.batch_size) == (1, 8)
    # An update without them keeps to them.
    learn(folder(tmp_path / "third", "dog"), "--model", model)
    assert ModelStore.open(model).document(3).settings.method == settings.method
