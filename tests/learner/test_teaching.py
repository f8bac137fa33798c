"""``grace.learn``: what ``grace learn`` decides, from Python."""

from pathlib import Path

import pytest

import grace
from grace.learner.store import ModelStore
from support.picture_folders import folder
from support.tiny_streams import tiny_backbones as tiny_backbones

TINY = (
    *("method=replay", "memory.size=5", "backbone.name=resnet20", "data.image_size=16"),
    *("engine.device=cpu", "engine.threads=1", "data.augmentation=none"),
    *("method.base.epochs=1", "method.base.batch_size=8"),
    *("method.update.epochs=1", "method.update.batch_size=8"),
)


@pytest.fixture
def images(tmp_path: Path, tiny_backbones: None) -> Path:
    return folder(tmp_path / "images", "ant", "bee")


def test_the_first_call_makes_a_learner_and_the_same_call_changes_nothing(
    images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    made = grace.learn(tmp_path / "model", images, TINY)
    assert (made.is_new, made.in_use, made.was_in_use) == (True, 1, None)
    assert made.class_names == ["ant", "bee"]
    same = grace.learn(tmp_path / "model", images, TINY)
    assert (same.is_new, same.in_use, same.was_in_use) == (False, 1, 1)
    assert same.document == made.document
    more = folder(tmp_path / "more", "cat")
    with pytest.warns(grace.GraceWarning, match="^gate.max_drop=0 is too fine: 4 held-out"):
        later = grace.learn(tmp_path / "model", more, max_drop=0)
    assert (later.is_new, later.document.number, later.was_in_use) == (True, 2, 1)
    assert later.is_rejected == (later.in_use == 1)
    assert grace.Learner.load(tmp_path / "model").class_names[:2] == ["ant", "bee"]
    # A library prints nothing.
    assert capfd.readouterr() == ("", "")


def test_what_has_no_effect_is_a_warning(images: Path, tmp_path: Path) -> None:
    idle = [*TINY, "scenario.increment=3"]
    with pytest.warns(grace.ConfigWarning, match=r"'scenario.increment=3' has no effect"):
        grace.learn(tmp_path / "model", images, idle)


def test_refusals_name_the_setting_that_helps(images: Path, tmp_path: Path) -> None:
    (images / "ant" / "000.png").write_bytes(b"no image")
    with pytest.raises(grace.GraceError, match=r"or set data.skip_unreadable=true$"):
        grace.learn(tmp_path / "model", images, TINY)
    with pytest.warns(grace.GraceWarning, match="unreadable images"):
        grace.learn(tmp_path / "model", images, [*TINY, "data.skip_unreadable=true"])
    other = ["data.image_size=8", "data.skip_unreadable=true"]
    with pytest.raises(grace.GraceError, match=r"data.image_size 16, and 'data.image_size=8' cann"):
        grace.learn(tmp_path / "model", images, other)


def test_settings_change_with_an_update_or_not_at_all(images: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    grace.learn(model, images, TINY)
    other = ["memory.size=9", "engine.eval_batch_size=7"]
    with pytest.warns(grace.GraceWarning, match=r"grace set \S+/model memory.size=9'") as warned:
        assert not grace.learn(model, images, other).is_new
    assert len(warned) == 1
    assert ModelStore.open(model).settings().memory.size == 5
    later = grace.learn(model, folder(tmp_path / "more", "cat"), other)
    assert list(map(str, later.document.changed)) == ["memory.size 5 → 9"]
    assert later.document.settings.memory.size == 9
    # Whoever asks for what is so already changes nothing.
    last = grace.learn(model, folder(tmp_path / "last", "dog"), other)
    assert (last.document.changed, last.document.settings.memory.size) == ((), 9)


def test_other_settings_are_another_update_after_a_rollback(images: Path, tmp_path: Path) -> None:
    model, more = tmp_path / "model", folder(tmp_path / "more", "cat")
    grace.learn(model, images, TINY)
    grace.learn(model, more)
    grace.Learner.load(model).rollback(1)
    with pytest.warns(grace.GraceWarning, match="version 2 has learnt these images already"):
        later = grace.learn(model, more, ["memory.size=9"])
    assert (later.is_new, later.in_use, later.document.settings.memory.size) == (True, 3, 9)
    grace.Learner.load(model).rollback(1)
    again = grace.learn(model, more, ["memory.size=9"])
    assert (again.is_new, again.in_use, again.document.settings.memory.size) == (False, 3, 9)


def test_the_command_that_changes_a_setting_is_quoted(images: Path, tmp_path: Path) -> None:
    model, tiny = tmp_path / "model", [text for text in TINY if "update" not in text]
    grace.learn(model, images, ["method=grace", *tiny[1:]])
    other = ["method.expand_at=[2, 3]"]
    with pytest.warns(grace.GraceWarning, match=r"/model 'method.expand_at=\[2, 3\]'' changes it"):
        assert not grace.learn(model, images, other).is_new


def test_a_first_update_that_was_interrupted_is_dropped_on_request(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    model = tmp_path / "model"
    with monkeypatch.context() as patch:
        patch.setattr(ModelStore, "write", die)
        with pytest.raises(KeyboardInterrupt) as stopped:
            grace.learn(model, images, TINY)
    assert stopped.value.__notes__ == ["the same command will go on from here"]
    other = [*TINY, "memory.size=7"]
    with pytest.raises(grace.GraceError) as refused:
        grace.learn(model, images, other)
    assert refused.value.remedy.endswith("add --discard to begin anew")
    done = grace.learn(model, images, other, discard=True)
    assert done.document.settings.memory.size == 7
