"""What is written about a learner: read as a stranger's, and changed by forgetting alone."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grace.base.errors import DamagedError, NewerFormatError
from grace.learner.document import Creation, Document, parse
from grace.learner.learner import Learner
from grace.learner.model import Model
from grace.learner.store import ModelStore
from grace.settings.experiment import ExperimentSettings
from support import hostile_model


@given(st.binary(max_size=60))
@example(b"")
@example(b"null")
@example(b"[]")
@example(b'{"format":1,"format":1}')
@example(b"[" * 100_000)
@example(b'{"format":1e999}')
@example(b'{"format":2,"anything":["else"]}')
def test_any_bytes(data: bytes) -> None:
    with pytest.raises((DamagedError, NewerFormatError), match="the file"):
        parse(Document, data, "the file")


def test_model_and_pointer_are_read_with_the_same_suspicion(spoilt: hostile_model.Model) -> None:
    pointer, model = spoilt.path / "current.json", spoilt.path / "model.json"
    for value in ({}, 2, {"version": 0}, {"version": True}, {"version": "2"}, {"version": 2.0}):
        pointer.write_text(json.dumps(value))
        with pytest.raises(DamagedError, match=r"current.json' is damaged: .*: roll back to a"):
            Learner.load(spoilt.path)
    (spoilt.path / "versions" / "0007.json").write_bytes(spoilt.files["versions/0001.json"])
    pointer.write_text('{"version":7}')
    other = "it says .* is version 1: restore it from a backup, or roll back to another version"
    with pytest.raises(DamagedError, match=rf"0007.json' is damaged: {other}"):
        Learner.load(spoilt.path)
    whole = json.loads(model.read_text())
    model.write_text(json.dumps({**whole, "format": 3}))
    with pytest.raises(NewerFormatError, match="has format 3, this grace reads up to 1"):
        Learner.load(spoilt.path)
    model.write_text(json.dumps({**whole, "kind": "a cake"}))
    with pytest.raises(DamagedError, match=r"model.json' is damaged: kind.*: restore it from a"):
        Learner.load(spoilt.path)


def test_a_class_is_forgotten_and_nothing_else(sound_model: hostile_model.Model) -> None:
    before = ModelStore.open(sound_model.path).document(2)
    assert parse(Document, before.dump(), "the file") == before
    after = before.without("class 3")
    assert (before.forgotten, after.forgotten, after.calibration) == ((1,), (1, 3), None)
    assert before.class_names == ("class 0", "class 1", "class 2", "class 3")
    assert after.live_class_names == ["class 0", "class 2"]
    changed = {"exemplars", "validation", "original_counts"}
    for name in set(Document.model_fields) - {"forgotten", "calibration"}:
        one, two = getattr(before, name), getattr(after, name)
        assert {**one} == {**two, 3: one[3]} if name in changed else one == two


SOUND: dict[str, Any] = {"shape": (3, 1024, 8), "mean": (0.5,) * 3, "std": [0.25] * 3}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": (3, 1025, 8)}, "shape.1: it should be less than or equal to 1024"),
        ({"mean": (0.5,)}, "mean and std need one number for each of 1 or 3 channels"),
        ({"std": (0.25, 1e300, 0.25)}, "std.1: it should be less than or equal to 1000000"),
        ({"mean": (float("nan"), 0, 0)}, "mean.0: it should be a finite number"),
    ],
)
def test_what_could_not_be_brought_back_is_not_made(changes: dict[str, Any], message: str) -> None:
    assert Creation.of(ExperimentSettings(), **SOUND).std == (0.25,) * 3
    for make in (Creation.of, Model):  # Before anything is learnt, not when it is to be saved.
        with pytest.raises(ValueError, match=rf"^no learner can be made: {message}$"):
            make(ExperimentSettings(), **(SOUND | changes))
