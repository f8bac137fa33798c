"""``grace.learn``: what ``grace learn`` decides, from Python."""

from pathlib import Path

import pytest

import grace
from grace.learner.setting_changes import FIXED, differences, effect
from grace.learner.store import ModelStore
from grace.settings.experiment import DataSettings, ExperimentSettings
from grace.settings.load import describe_settings
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
    with pytest.warns(grace.ConfigWarning, match=r"'scenario.increment=3' has no effect"):
        made = grace.learn(tmp_path / "model", images, [*TINY, "scenario.increment=3"])
    assert (made.is_new, made.in_use, made.was_in_use) == (True, 1, None)
    assert made.class_names == ["ant", "bee"]
    assert len(made.chosen) == 3
    same = grace.learn(tmp_path / "model", images, TINY)
    assert (same.is_new, same.in_use, same.was_in_use, same.chosen) == (False, 1, 1, ())
    assert same.document == made.document
    more = folder(tmp_path / "more", "cat")
    with pytest.warns(grace.GraceWarning, match="^gate.max_drop=0 is too fine: 4 held-out"):
        later = grace.learn(tmp_path / "model", more, max_drop=0)
    assert (later.is_new, later.document.number, later.was_in_use) == (True, 2, 1)
    assert later.is_rejected == (later.in_use == 1)
    # A library prints nothing.
    assert capfd.readouterr() == ("", "")


def test_settings_change_with_an_update_or_not_at_all(images: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    grace.learn(model, images, TINY)
    other = ["memory.size=9", "data.augmentation=[flip, crop]", "engine.eval_batch_size=7"]
    quoted = r"/model 'data.augmentation=\[.flip., .crop.\]' memory.size=9'"
    with pytest.warns(grace.GraceWarning, match=quoted) as warned:
        assert not grace.learn(model, images, other).is_new
    assert len(warned) == 1
    assert ModelStore.open(model).settings().memory.size == 5
    later = grace.learn(model, folder(tmp_path / "more", "cat"), [other[0], other[2]])
    assert list(map(str, later.document.changed)) == ["memory.size 5 → 9"]
    assert later.document.settings.memory.size == 9
    assert later.document.settings.engine.eval_batch_size == 7
    # After a rollback, other settings are another update.
    grace.Learner.load(model).rollback(1)
    third = grace.learn(model, tmp_path / "more", ["memory.size=8"])
    assert (third.is_new, third.in_use, third.document.settings.memory.size) == (True, 3, 8)
    # Whoever asks for what is so already changes nothing.
    last = grace.learn(model, folder(tmp_path / "last", "dog"), ["memory.size=8"])
    assert (last.document.changed, last.document.settings.memory.size) == ((), 8)


def test_what_a_change_of_each_setting_does() -> None:
    settings = ExperimentSettings()
    paths = [row.path for row in describe_settings(settings)]
    kinds = ("fixed", "none", "machine", "reading", "pace", "learning")
    found = {kind: {path for path in paths if effect(path) == kind} for kind in kinds}
    assert {path for path in paths if path.startswith("engine.")} == found["machine"]
    assert found["reading"] == {
        f"data.{n}" for n in ("max_pixels", "skip_unreadable", "skip_duplicates")
    }
    assert {"seeds.class_order", "scenario.base", "data.root", "probe.images"} < found["none"]
    assert {"name", "method.name", "backbone.stem", "seeds.data", "data.fit"} < found["fixed"]
    assert {"budget.minutes", "method.grow.epochs", "method.base.lr"} < found["pace"]
    assert (
        effect("method.threshold") == effect("memory.size") == effect("gate.max_drop") == "learning"
    )
    assert len(FIXED) == 7
    other = settings.model_copy(update={"data": DataSettings(root="ä" * 60, channels=3)})
    assert list(map(str, differences(settings, other))) == [
        "data.root none → " + r"\xe4" * 24 + r"\...",
        "data.channels none → 3",
    ]
