"""``grace learn`` and ``grace doctor``: what they do, refuse and say; see also test_teaching."""

import json
import shutil
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


def facts_of(lines: list[str]) -> dict[str, str]:
    """The facts of a page, by their labels."""
    parts = [line.split("  ", 1) for line in lines if "  " in line and line[0] != " "]
    return {label: text.strip() for label, text in parts}


def test_it_makes_a_learner_and_sums_up(made: tuple[Path, Path, Any]) -> None:
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
    assert "update: base, 2 epochs over 20 images" in result.stderr


def test_settings_of_a_new_learner(tmp_path: Path) -> None:
    model, images = tmp_path / "model", tmp_path / "images"
    folder(images / "train", "ant", "bee", side=20)
    folder(images / "test", "ant", "bee", count=4, seed=1, side=20)
    options = [*TINY, "method=finetune", "data.channels=1", "seed=7", "memory.validation=3"]
    # A later setting wins over the first.
    options += ["method=grace", "data.image_size=12", "--max-mb", 2, "--json"]
    told = json.loads(learn(images, "--model", model, *options).stdout)
    creation = ModelStore.open(model).creation
    assert (creation.shape, creation.settings.method.name) == ((1, 12, 12), "grace")
    assert set(creation.settings.seeds.model_dump().values()) == {7}
    # The test images are held out, and the ceiling is left to exemplars.
    assert creation.settings.memory.size is None
    assert (told["num_images"], told["num_held_out"], told["num_exemplars"]) == (24, 6, 24)
    # All its objects, each once.
    size = sum(len(c) for name, c in files(model).items() if name.startswith("objects/"))
    assert told["bytes"] == {"before": 0, "after": size}
    assert 300_000 < size < 1e6 * told["max_mb"] == 2_000_000


def test_page_and_json_have_the_same_facts(first: tuple[Path, Path], tmp_path: Path) -> None:
    _, model = first
    lines = learn(folder(tmp_path / "more", "cat"), "--model", model).stdout.splitlines()
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
    assert (told["learnt_now"], told["num_classes"], told["new_classes"]) == (True, 4, ["dog"])
    assert told["update"] == update.model_dump(mode="json")
    before, after = update.accuracy.old_before, update.accuracy.old_after
    assert told["accuracy_of_old"] == {"before": before, "after": after}
    (ruling,) = told["gate"]
    assert (ruling["limit"], ruling["observed"]) == (100, update.accuracy.drop)
    assert told["bytes"]["after"] == update.num_bytes > told["bytes"]["before"] > 0


def test_what_was_learnt_already_is_recognised(first: tuple[Path, Path], tmp_path: Path) -> None:
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
    # Version 3 continues another one: the images are learnt.
    call("rollback", model, 1)
    result = learn(dogs, "--model", model)
    assert result.stdout.startswith("Learnt 1 new class in ")
    fresh = learn(dogs, "--model", model, "--again").stdout.splitlines()
    assert fresh[0].startswith("Learnt fresh images in ")
    assert facts_of(fresh)["refreshed classes"] == "dog"
    # 0.001 MB holds no version, so that only the one in use stays, also if nothing is learnt.
    result = learn(dogs, "--model", model, "--max-disk-mb", 0.001)
    assert "removed    versions 1, 2, 3, 4, for --max-disk-mb" in result.stdout
    size = sum(path.stat().st_size for path in model.glob("[ov]*s/*")) / 1e3
    assert f"what must stay takes {size:.0f} kB, more than the 0.001 MB" in result.stderr
    assert home.numbers() == [5]


def test_what_it_is_made_of_may_not_change(first: tuple[Path, Path]) -> None:
    images, model = first
    before = files(model)
    refusals = {
        ("seed=4",): "and 'seeds.initialisation=4' cannot change it: its random draws",
        ("method=der",): "method.name grace, and 'method.name=der' cannot change it: ",
        ("--experiment", "digits"): "name folder, and 'name=digits' cannot change it",
        # The experiment itself has another backbone than the learner was given.
        ("--experiment", "folder"): "' cannot change it: ",
    }
    for options, says in refusals.items():
        error = refused(images, "--model", model, *options)
        assert f"error: '{model}' was made with " in error
        assert says in error
        assert error.endswith(": leave it out, or choose another directory for the learner")
    wrong = refused("nowhere", "--model", model, "method.treshold=1")
    assert "did you mean 'method.threshold'?" in wrong
    assert files(model) == before


def test_a_rejected_update_is_kept_beside(tmp_path: Path) -> None:
    model, images = tmp_path / "model", folder(tmp_path / "first", "ant", "bee", count=20)
    # It keeps no images, and forgets.
    epochs = ["method.base.epochs=8", "method.update.epochs=8"]
    learn(images, "--model", model, *FINETUNE, *epochs)
    more = folder(tmp_path / "more", "cat", "dog", count=20)
    before = files(model)
    result = learn(more, "--model", model, "--max-drop", 0, code=3)
    lines = result.stdout.splitlines()
    assert lines[0] == f"Rejected: '{model}' stays at version 1, version 2 holds it"
    assert "can show no drop below 62.5 points; set no less\n" in result.stderr
    assert any(line.startswith("gate       rejected: the old classes lost ") for line in lines)
    assert lines[-1] == f"use it anyway   grace rollback {model} 2"
    after = files(model)
    assert after.pop("history.jsonl").startswith(before.pop("history.jsonl"))
    assert after.items() >= before.items()
    assert all(name.startswith(("versions/", "objects/")) for name in set(after) - set(before))

    # The same again trains nothing, nor does it name the rejected version.
    again = learn(more, "--model", model, "--max-drop", 0, "--json", code=3)
    told = json.loads(again.stdout)
    assert (told["version"], told["in_use"], told["learnt_now"]) == (2, 1, False)
    gone = ["--max-drop", 1, "--again", "--max-disk-mb", 0.001]
    anew = learn(more, "--model", model, *gone, code=3)
    assert "learnt these images already" not in again.stderr + anew.stderr
    lines = anew.stdout.splitlines()
    assert lines[0].endswith("stays at version 1, version 3 with this update was removed")
    assert lines[-1] == "to keep it, give a larger --max-disk-mb"
    learn(more, "--model", model, "--max-drop", 0, code=3)
    # With a wider gate they are trained again.
    wide = learn(more, "--model", model, "--max-drop", 100)
    assert "gate       passed: the old classes lost " in wide.stdout
    assert call("rollback", model, 4).exit_code == 0
    used = learn(more, "--model", model, "--max-drop", 0)
    assert "has learnt these images already, as version 4" in used.stdout


def test_a_gate_without_images_to_judge_by(tmp_path: Path) -> None:
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


def test_an_interrupted_command_goes_on_and_another_is_refused(
    first: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies when all training is over and nothing is saved yet."""
    images, model = folder(tmp_path / "images", "ant", "bee"), tmp_path / "new"
    cats, dogs = folder(tmp_path / "cats", "cat"), folder(tmp_path / "dogs", "dog")
    with monkeypatch.context() as patch:
        patch.setattr(ModelStore, "write", die)
        result = learn(images, "--model", model, *GRACE, code=130)
        learn(cats, "--model", first[1], code=130)
    assert "the same command will go on from here" in result.stderr
    assert ModelStore.open(model).numbers() == []
    before, other = kept_work(model), [images, "--model", model, *TINY, "method=replay"]
    error = refused(*other)
    assert "method.name grace, not replay" in error
    assert error.endswith(": leave it out, or add --discard to begin anew")
    more = folder(tmp_path / "more", "ant", "cat")
    assert refused(more, "--model", model).endswith(f"learn --model {model} --discard'")
    assert kept_work(model) == before
    copy = Path(shutil.copytree(model, tmp_path / "copy"))
    learn(images, "--model", copy, *TINY, "method=replay", "--discard")
    assert ModelStore.open(copy).document(1).settings.method.name == "replay"
    with monkeypatch.context() as patch:
        patch.setattr(phase_run.PhaseRun, "epoch", die)  # No epoch is trained again.
        learn(images, "--model", model, *GRACE, "engine.eval_batch_size=5")
    assert ModelStore.open(model).current() == 1
    assert not ModelStore.open(model).pending()
    # A later update goes on, or is dropped.
    assert "was interrupted" in refused(dogs, "--model", first[1])
    dropped = learn("--model", first[1], "--discard").stdout
    assert dropped == f"dropped the interrupted update of '{first[1]}'\n"
    learn(dogs, "--model", first[1])
    assert ModelStore.open(first[1]).document(2).class_names == ("ant", "bee", "dog")
    assert "there is no interrupted update" in learn("--model", first[1], "--discard").stdout


def test_without_any_work_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, model = folder(tmp_path / "images", "ant", "bee"), tmp_path / "model"
    # A process that was killed here had made the learner and begun its first update.
    made = ("folder", ["backbone.name=resnet20"])
    learner = Learner.create(*made, shape=(3, 64, 64), directory=model)
    assert learner.home is not None
    learner.home.begin(None, "0" * 64)
    with learner.home.changing():
        before = files(model)
        assert "another process" in refused(images, "--model", model, *GRACE)
        assert files(model) == before
    monkeypatch.setattr(phase_run.PhaseRun, "epoch", die)
    learn(images, "--model", model, *TINY, "method=replay", code=130)
    assert not model.exists()


def test_images_that_cannot_be_learnt(tmp_path: Path) -> None:
    model = tmp_path / "model"
    good = call("doctor", folder(tmp_path / "good", "ant", "bee", count=25), *TINY)
    lines = good.output.splitlines()
    assert (good.exit_code, lines[0]) == (0, f"{tmp_path / 'good'}: 50 images")
    assert lines[-1] == "Ready: 50 images of 2 classes can be learned."
    empty = folder(tmp_path / "empty", "ant", "bee")
    (empty / "cat").mkdir()
    one, bad = folder(tmp_path / "one", "ant"), folder(tmp_path / "bad", "ant", "bee")
    (bad / "ant" / "000.png").write_bytes(b"no image")
    says = {
        ("nowhere",): "'nowhere' does not exist",
        (Path(__file__),): "is not a folder",
        (empty,): "class folders without images (1): 'cat'",
        (one,): "has images of one class, 'ant': the first update of a learner needs at least two",
        (bad,): "ant/000.png",
    }
    for words, text in says.items():
        for verb in (["doctor"], ["learn", "--dry-run"], ["learn", "--model", model]):
            result = call(*verb, *words, *TINY)
            assert result.exit_code == 2
            assert text in result.output
    skip = "data.skip_unreadable=true"
    assert call("doctor", bad, *TINY).output.splitlines()[-1].endswith(f", or set {skip}.")
    assert call("doctor", bad, *TINY, skip).exit_code == 0
    picture("ant", 1).save(bad / "bee" / "twin.png")
    error = refused(bad, "--model", model, skip)
    assert error.endswith("or set data.skip_duplicates=true")
    assert "give the folder of the new images" in refused("--model", model)
    assert not model.exists()


def test_doctor_tells_what_a_learner_knows(first: tuple[Path, Path], tmp_path: Path) -> None:
    images, model = first
    before = files(model)
    more = folder(tmp_path / "more", "cat", "Ant", seed=1)
    found = json.loads(call("doctor", more, "--model", model, "--json").output)
    assert [found["classes"][name]["is_new"] for name in ("Ant", "cat")] == [True, True]
    assert found["verdict"].endswith("'Ant' is the known class 'ant'; rename the folders.")
    assert (found["ready"], found["chosen"]) == (False, [])
    known = json.loads(call("doctor", images, "--model", model, "--json").output)
    assert known["classes"]["ant"]["is_new"] is False
    assert files(model) == before
    ModelStore.open(model).begin(1, "0" * 64)
    (model / "pending" / "0000.safetensors").touch()
    told = call("doctor", images, "--model", model, "--json")
    assert told.stderr.startswith("An update was interrupted")
    assert json.loads(told.stdout) == known


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
    made: tuple[Path, Path, Any], tmp_path: Path, options: list[Any], says: str
) -> None:
    model = tmp_path / "place" / "model"
    assert says in refused(made[0], "--model", model, *TINY, *options)
    assert not model.exists()


def test_places_where_no_learner_can_be(first: tuple[Path, Path], tmp_path: Path) -> None:
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
