"""Documents are a stranger's until they are checked: whole, or refused in one line."""

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grace.base.errors import DamagedError, NewerFormatError
from grace.learner.document import Creation, Document, parse
from grace.learner.learner import Learner
from grace.learner.model import Model
from grace.learner.store import ModelStore
from grace.methods.grace import Grace
from grace.settings.experiment import ExperimentSettings, MemorySettings
from support.tiny_streams import SIZE, class_names, labelled, recipe, settings

pytestmark = pytest.mark.usefixtures("tiny_backbones")

Json = Any
Change = Callable[[Json], object]


@pytest.fixture(scope="module")
def home(tiny_backbones: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two updates of GRACE, five classes, one of them forgotten."""
    path = tmp_path_factory.mktemp("document") / "home"
    method = Grace.Settings(base=recipe(), grow=recipe(), compress=recipe(), threshold=1.0)
    memory = MemorySettings(size=20, validation=1, max_mb=3.5)
    chosen = settings(method, memory=memory)
    made = Learner.create(chosen, shape=(3, SIZE, SIZE), directory=path)
    for counts in ({0: 5, 1: 5, 2: 5}, {3: 5, 4: 5, 0: 3}):
        data = labelled(counts)
        made.update(data.images, class_names(data))
    made.forget("class 1")
    return path


@pytest.fixture(scope="module")
def original(home: Path) -> Json:
    return json.loads((home / "versions" / "0002.json").read_text())


def at(value: Json, path: tuple[Any, ...]) -> Json:
    for key in path:
        value = value[key]
    return value


def read(raw: Json) -> Document:
    return parse(Document, json.dumps(raw).encode(), "the file")


@given(st.binary(max_size=60))
@example(b"")
@example(b"null")
@example(b"[]")
@example(b'{"format":1,"format":1}')
@example(b"[" * 100_000)
@example(b'{"format":1e999}')
def test_any_bytes(data: bytes) -> None:
    with pytest.raises((DamagedError, NewerFormatError), match="the file"):
        parse(Document, data, "the file")


def test_a_newer_format_is_named_whatever_else_it_holds(original: Json) -> None:
    for raw in ({**original, "format": 2}, {"format": 2, "anything": ["else"]}):
        message = "the file has format 2, this grace reads up to 1: upgrade grace"
        with pytest.raises(NewerFormatError, match=message):
            read(raw)


def test_model_and_pointer_are_read_with_the_same_suspicion(home: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(home, tmp_path / "home"))
    pointer, model = folder / "current.json", folder / "model.json"
    for value in ({}, 2, {"version": 0}, {"version": True}, {"version": "2"}, {"version": 2.0}):
        pointer.write_text(json.dumps(value))
        with pytest.raises(DamagedError, match=r"current.json' is damaged: .*: roll back to a"):
            Learner.load(folder)
    pointer.write_text('{"version":7}')
    with pytest.raises(ValueError, match=r"has no version 7 \(it has 1, 2\)"):
        Learner.load(folder)
    shutil.copy(folder / "versions" / "0001.json", folder / "versions" / "0007.json")
    other = "it says .* is version 1: restore it from a backup, or roll back to another version"
    with pytest.raises(DamagedError, match=rf"0007.json' is damaged: {other}"):
        Learner.load(folder)
    whole = json.loads(model.read_text())
    model.write_text(json.dumps({**whole, "format": 3}))
    with pytest.raises(NewerFormatError, match="has format 3, this grace reads up to 1"):
        Learner.load(folder)
    model.write_text(json.dumps({**whole, "kind": "a cake"}))
    with pytest.raises(DamagedError, match=r"model.json' is damaged: kind.*: restore it from a"):
        Learner.load(folder)


def put(*path: Any) -> Change:
    """Set a place of the document to the last argument."""

    def change(raw: Json) -> None:
        at(raw, path[:-2])[path[-2]] = path[-1]

    return change


LONE = {"task": 1, "new_class_names": ["a"], "outcome": {"verdict": "start"}}
NO_CLASS = "it names a class index that does not exist"
DAMAGES: dict[str, tuple[Change, str]] = {
    **{
        f"format {found!r}": (put("format", found), "it names no format")
        for found in (0, True, 1.0, "1", None)
    },
    "no history": (put("history", []), "history: "),
    "two channels": (put("shape", [2, 8, 8]), "mean and std need one number for each of 1 or 3"),
    "mean": (put("mean", [0.5]), "mean and std need one number for each"),
    "std": (put("std", [0.5, 0.5, 0.0]), "std.2: it should be greater than"),
    "no number": (put("mean", 0, float("nan")), "NaN is no number"),
    "twins": (put("history", 0, "new_class_names", 1, "CLASS 0"), "or two of one name"),
    "one class": (put("history", [LONE]), "it has fewer than two classes"),
    "below": (put("forgotten", [-1, 1]), NO_CLASS),
    "exemplars": (lambda raw: raw["exemplars"].update({"9": raw["exemplars"]["0"]}), NO_CLASS),
    "held out": (lambda raw: raw["validation"].update({"9": raw["validation"]["0"]}), NO_CLASS),
    "originals": (put("original_counts", "9", 3), NO_CLASS),
    "measured": (
        put("history", 0, "accuracy", "classes", [{"index": 5, "num": 1, "after": 1}]),
        NO_CLASS,
    ),
    "counted": (put("exemplars", "0", "num", 0), "exemplars.0.num: it should be greater than"),
    "bytes": (put("parts", "head", "bytes", -1), "parts.head.bytes: it should be greater than"),
    "size": (put("shape", [3, 8, 1025]), "shape.2: it should be less than or equal to 1024"),
    "date": (put("created", "now\x1b[2J"), "created: it should be"),
    "long date": (put("history", 0, "date", "9" * 101), "it should be a text of at most 100"),
    "extra": (put("hook", "rm -rf"), "hook: "),
    "share": (put("history", 0, "accuracy", "teacher", 1.5), "teacher: it should be less"),
    "settings": (put("settings", "method", "name", "magic"), "unknown method 'magic'"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_what_is_wrong_is_named(name: str, original: Json) -> None:
    change, message = DAMAGES[name]
    raw = copy.deepcopy(original)
    change(raw)
    with pytest.raises(DamagedError, match=r"^the file is damaged: ") as refusal:
        read(raw)
    assert message in str(refusal.value)
    assert str(refusal.value).isprintable()


def test_a_class_is_forgotten_and_nothing_else(home: Path) -> None:
    before = ModelStore.open(home).document(2)
    assert parse(Document, before.dump(), "the file") == before
    assert before.class_names == tuple(f"class {i}" for i in range(5))
    after = before.without("class 3")
    assert (before.forgotten, after.forgotten, after.calibration) == ((1,), (1, 3), None)
    assert after.live_class_names == ["class 0", "class 2", "class 4"]
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
def test_what_could_not_be_brought_back_is_not_made(changes: Json, message: str) -> None:
    assert Creation.of(ExperimentSettings(), **SOUND).std == (0.25,) * 3
    for make in (Creation.of, Model):  # Before anything is learnt, not when it is to be saved.
        with pytest.raises(ValueError, match=rf"^no learner can be made: {message}$"):
            make(ExperimentSettings(), **(SOUND | changes))
