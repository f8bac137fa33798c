"""Documents are a stranger's until they are checked: whole and in agreement, or refused."""

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from grace.base import strict_json
from grace.base.errors import DamagedError, NewerFormatError
from grace.base.words import printable
from grace.learner.document import Document, parse
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.grace import Grace
from grace.settings.experiment import MemorySettings
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


def places(value: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of every value in a document, its root left out."""
    children = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in children:
        yield (*path, key)
        if isinstance(child, dict | list):
            yield from places(child, (*path, key))


def at(value: Json, path: tuple[Any, ...]) -> Json:
    for key in path:
        value = value[key]
    return value


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 9)
    | st.sampled_from([10**6, -(10**6), 2**31])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(["", "class 0", "0", "../../etc/passwd", "\x1b[2J", "a" * 300, "0" * 64]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


def mutated(data: st.DataObject, original: Json) -> Json:
    """The document with one to three values replaced, removed, doubled, moved or added."""
    raw = copy.deepcopy(original)
    for _ in range(data.draw(st.integers(1, 3))):
        found = list(places(raw))
        path = data.draw(st.sampled_from(found))
        parent, key = at(raw, path[:-1]), path[-1]
        kind = data.draw(st.sampled_from(["replace", "replace", "remove", "move", "add"]))
        if kind == "replace":
            parent[key] = data.draw(anything)
        elif kind == "remove":
            del parent[key]
        elif kind == "move":
            parent[key] = copy.deepcopy(at(raw, data.draw(st.sampled_from(found))))
        elif isinstance(parent, dict):
            parent[data.draw(st.text(max_size=5))] = data.draw(anything)
        else:
            parent.insert(key, copy.deepcopy(parent[key]))
        if not raw:
            break
    return raw


def written(value: Json) -> bytes:
    return json.dumps(value).encode()


def refuse_untidy(refusal: ValueError) -> None:
    """A refusal is one line that a terminal only shows."""
    assert str(refusal) == printable(str(refusal))


class TestMutations:
    @hypothesis_settings(
        max_examples=300, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
    )
    @given(data=st.data())
    def test_a_document_or_a_refusal(self, data: st.DataObject, original: Json) -> None:
        raw = mutated(data, original)
        try:
            document = parse(Document, written(raw), "the file")
        except (DamagedError, NewerFormatError) as refusal:
            refuse_untidy(refusal)
            return
        # What is taken is a document in earnest: it can be written, read, asked and purged.
        assert parse(Document, document.dump(), "the file") == document
        assert document.num_bytes > 0
        for name in document.live_class_names:
            without = parse(Document, document.without(name).dump(), "the file")
            assert name not in without.live_class_names

    @hypothesis_settings(
        max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
    )
    @given(data=st.data())
    def test_a_learner_or_a_refusal(
        self, data: st.DataObject, original: Json, home: Path, tmp_path_factory: Any
    ) -> None:
        threads = torch.get_num_threads()
        raw = mutated(data, original)
        folder = tmp_path_factory.mktemp("forged") / "home"
        shutil.copytree(home, folder)
        (folder / "versions" / "0002.json").write_bytes(written(raw))
        try:
            learner = Learner.load(folder)
            learner.predict(torch.zeros(1, *learner.shape, dtype=torch.uint8))
        except ValueError as refusal:
            refuse_untidy(refusal)
        finally:
            torch.set_num_threads(threads)
            shutil.rmtree(folder)

    @given(st.binary(max_size=60))
    @example(b"")
    @example(b"null")
    @example(b"[]")
    @example(b"{}")
    @example(b'{"format":1,"format":1}')
    @example(b"[" * 100_000)
    @example(b'{"format":1e999}')
    def test_any_bytes(self, data: bytes) -> None:
        with pytest.raises((DamagedError, NewerFormatError), match="the file"):
            parse(Document, data, "the file")


class TestFormat:
    def test_a_newer_one_is_named_whatever_else_it_holds(self, original: Json) -> None:
        for raw in ({**original, "format": 2}, {"format": 2, "anything": ["else"]}):
            message = "the file has format 2, this grace reads up to 1: upgrade grace"
            with pytest.raises(NewerFormatError, match=message):
                parse(Document, written(raw), "the file")

    @pytest.mark.parametrize("found", [0, -1, True, 1.0, "1", None, [1]])
    def test_one_that_is_none(self, found: Json, original: Json) -> None:
        with pytest.raises(DamagedError, match="the file is damaged: it names no format"):
            parse(Document, written({**original, "format": found}), "the file")

    def test_model_and_pointer_are_read_with_the_same_suspicion(
        self, home: Path, tmp_path: Path
    ) -> None:
        folder = Path(shutil.copytree(home, tmp_path / "home"))
        for value in ({}, 2, {"version": 0}, {"version": True}, {"version": "2"}, {"version": 2.0}):
            (folder / "current.json").write_text(json.dumps(value))
            with pytest.raises(DamagedError, match=r"current.json' is damaged"):
                Learner.load(folder)
        (folder / "current.json").write_text('{"version":7}')
        with pytest.raises(ValueError, match=r"has no version 7 \(it has 1, 2\)"):
            Learner.load(folder)
        shutil.copy(folder / "versions" / "0001.json", folder / "versions" / "0007.json")
        other = "it says .* is version 1: restore it from a backup, or roll back to another version"
        with pytest.raises(DamagedError, match=rf"0007.json' is damaged: {other}"):
            Learner.load(folder)
        model = json.loads((folder / "model.json").read_text())
        (folder / "model.json").write_text(json.dumps({**model, "format": 3}))
        with pytest.raises(NewerFormatError, match="has format 3, this grace reads up to 1"):
            Learner.load(folder)
        (folder / "model.json").write_text(json.dumps({**model, "kind": "a cake"}))
        with pytest.raises(DamagedError, match=r"model.json' is damaged: kind"):
            Learner.load(folder)


def put(*path: Any) -> Change:
    """Set a place of the document, the last argument, which is None to remove it."""

    def change(raw: Json) -> None:
        at(raw, path[:-2])[path[-2]] = path[-1]

    return change


HISTORY = {"task": 1, "new_class_names": ["a"], "outcome": {"verdict": "start"}}
CONTRADICTIONS: dict[str, tuple[Change, str]] = {
    "no history": (put("history", []), "history: "),
    "two channels": (put("shape", [2, 8, 8]), "channels"),
    "mean": (put("mean", [0.5]), "mean and std need one number for each"),
    "std": (put("std", [0.5, 0.5, 0.0]), "std.2: it should be greater than"),
    "twins": (put("history", 0, "new_class_names", 1, "CLASS 0"), "or two of one name"),
    "one class": (put("history", [HISTORY]), "it has fewer than two classes"),
    "no name": (put("history", 0, "new_class_names", 1, " "), "the class name"),
    "escape codes": (put("history", 0, "new_class_names", 1, "\x1b[2J"), "the class name"),
    "no such class": (put("forgotten", [1, 5]), "it names a class index that does not exist"),
    "below": (put("forgotten", [-1, 1]), "it names a class index that does not exist"),
    "exemplars": (
        lambda raw: raw["exemplars"].update({"9": raw["exemplars"]["0"]}),
        "it names a class index that does not exist",
    ),
    "counts": (put("original_counts", "0", 0), "original_counts.0: it should be greater than"),
    "measured": (
        put("history", 0, "accuracy", "classes", [{"index": 5, "num": 1, "after": 1}]),
        "it names a class index that does not exist",
    ),
    "counted": (put("exemplars", "0", "num", 0), "exemplars.0.num: it should be greater than"),
    "one object": (
        lambda raw: raw["parts"].update({"backbone.1": raw["parts"]["backbone.0"]}),
        "two of its parts are one object",
    ),
    "prior": (
        put("history", 1, "predictor", {"prior": [1]}),
        "its predictor corrects for other classes than it has",
    ),
    "hash": (
        put("parts", "head", "sha256", "../" * 20),
        "parts.head.sha256: it should be a text of",
    ),
    "bytes": (put("parts", "head", "bytes", -1), "parts.head.bytes: it should be greater than"),
    "status": (put("status", "perfect"), "status: it should be 'accepted' or 'rejected'"),
    "size": (put("shape", [3, 8, 1025]), "shape.2: it should be less than or equal to 1024"),
    "date": (put("created", "now\x1b[2J"), "created: it should be a text of"),
    "long date": (
        put("history", 0, "date", "9" * 101),
        "history.0.date: it should be a text of at most 100",
    ),
    "extra": (put("hook", "rm -rf"), "hook: Extra inputs are not permitted"),
    "share": (put("history", 0, "accuracy", "teacher", 1.5), "teacher: it should be less"),
    "settings": (
        put("settings", "method", "name", "magic"),
        "settings.method: unknown method 'magic'",
    ),
}


class TestContradictions:
    def test_the_original_has_none(self, original: Json) -> None:
        document = parse(Document, written(original), "the file")
        assert document.class_names == tuple(f"class {i}" for i in range(5))
        assert document.forgotten == (1,)
        assert list(document.live_class_names) == [f"class {i}" for i in (0, 2, 3, 4)]
        assert document.dump() == strict_json.dump(document.model_dump(mode="json"))

    @pytest.mark.parametrize("name", CONTRADICTIONS)
    def test_they_are_named(self, name: str, original: Json) -> None:
        change, message = CONTRADICTIONS[name]
        raw = copy.deepcopy(original)
        change(raw)
        with pytest.raises(DamagedError, match=r"^the file is damaged: ") as refusal:
            parse(Document, written(raw), "the file")
        assert message in str(refusal.value)
        assert str(refusal.value).isprintable()

    @pytest.mark.parametrize("number", [float("nan"), float("inf")])
    def test_numbers_that_are_none(self, number: float, original: Json) -> None:
        raw = copy.deepcopy(original)
        raw["mean"][0] = number
        with pytest.raises(DamagedError, match="the file is damaged"):
            parse(Document, written(raw), "the file")


class TestForgetting:
    def test_a_class_goes_and_nothing_else(self, home: Path) -> None:
        before = ModelStore.open(home).document(2)
        after = before.without("class 3")
        assert after.forgotten == (1, 3)
        assert after.live_class_names == ["class 0", "class 2", "class 4"]
        assert {*before.exemplars} - {*after.exemplars} == {3}
        assert {*before.validation} - {*after.validation} == {3}
        assert {*before.original_counts} - {*after.original_counts} == {3}
        assert after.calibration is None
        untouched = set(Document.model_fields) - {
            "forgotten",
            "exemplars",
            "validation",
            "original_counts",
            "calibration",
        }
        assert all(getattr(before, name) == getattr(after, name) for name in untouched)
