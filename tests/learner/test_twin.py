"""Twins answer as their learners do, without torch; whatever is wrong with one, torch answers."""

import hashlib
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from grace.base import atomic
from grace.learner import answering, twin, twins
from grace.learner.learner import Learner
from grace.learner.onnx_graph import run_graph
from grace.learner.predictor import Predictor
from grace.learner.store import ModelStore
from grace.learner.unknown import Recogniser
from grace.settings.experiment import BackboneSettings, MemorySettings
from grace.settings.methods import FinetuneSettings
from support.commands import ran
from support.saved_learners import copied as copied
from support.saved_learners import saved as saved
from support.tiny_streams import labelled, learner, pictures, recipe

pytestmark = pytest.mark.usefixtures("tiny_backbones")

FACTS = twins.Twin(score_name="energy", familiarities=(0.5, 1.0), left_out=())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of twins, which the first one makes."""
    folder = tmp_path / "cache" / "twins"
    monkeypatch.setattr(twins, "FOLDER", str(folder))
    monkeypatch.delenv(twins.VARIABLE)
    return folder


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The learners that are loaded with torch from now on."""
    found: list[Path] = []
    load = Learner.load

    def noted(directory: Path, *others: Any) -> Learner:
        found.append(directory)
        return load(directory, *others)

    monkeypatch.setattr(Learner, "load", noted)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five images."""
    place = tmp_path / "images"
    place.mkdir()
    for index in range(5):
        image = pictures(index, 1, seed=7)[0].permute(1, 2, 0).numpy()
        Image.fromarray(image).save(place / f"{index}.png")
    return place


@pytest.fixture(scope="module")
def graph(saved: Path) -> bytes:
    """The graph of that learner's twin."""
    return answering.twin_of(Learner.load(saved))[1]


def rounded(text: str) -> str:
    return re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.3f}", text)


def contents(home: Path, number: int = 5) -> bytes:
    return ModelStore.open(home).document_bytes(number)


def assert_equal_answers(own: Learner) -> None:
    known, graph = answering.twin_of(own)
    assert known.score_name == own.recogniser.score.name
    images = torch.cat([pictures(index, 3, seed=9) for index in (0, 3, 4)])
    pixels = images.permute(0, 2, 3, 1).numpy()
    expected = answering.answerer_of(own).answer(pixels)
    probabilities, familiarities = run_graph(graph, own.shape, len(own.class_names), 1)(pixels)
    np.testing.assert_allclose(probabilities, expected[0], rtol=0, atol=1e-5)
    assert (probabilities.argmax(axis=1) == expected[0].argmax(axis=1)).all()
    np.testing.assert_allclose(familiarities, expected[1], rtol=1e-3, atol=1e-3)
    assert (probabilities[:, sorted(own.forgotten)] == 0).all()


def test_predictors_and_scores_agree_with_torch(saved: Path) -> None:
    own = Learner.load(saved)
    assert (len(own.method.network.backbones), own.forgotten) == (2, {2})
    linear = Predictor(classifier="linear")
    # The sums hold the other scores.
    for chosen, name in (
        (Predictor(classifier="linear", prior=(9, 3, 7, 20, 6), temperature=1.7), "energy+cosine"),
        (Predictor(classifier="nearest_mean"), "energy+mahalanobis"),
        (linear, "discriminant+cosine"),
        (linear, "nearest"),
        (linear, "max_probability"),
    ):
        own.model.state.predictor = chosen
        own.model.calibrate(name)
        assert own.recogniser.score.name == name
        assert_equal_answers(own)


def test_a_backbone_that_enlarges_its_images_agrees() -> None:
    pytest.importorskip("timm", reason="the timm extra is not installed")
    backbone = BackboneSettings(name="timm/test_efficientnet", input_size=32)
    method = FinetuneSettings(base=recipe(), update=recipe())
    own = learner(method, backbone=backbone, memory=MemorySettings(size=10, validation=2))
    data = labelled({0: 6, 1: 6, 2: 6, 3: 6, 4: 6})
    own.update(data.images, [str(label) for label in data.labels.tolist()])
    assert own.model.enlarge is not None
    assert_equal_answers(own)


@pytest.mark.parametrize(
    "options",
    [
        ["--unknown", "--false-alarms", "40"],
        ["--unknown", "--false-alarms", "40", "--top", "2", "--format", "jsonl"],
        ["--version", "2", "--format", "csv", "--top", "3"],
    ],
)
def test_the_same_is_printed(
    saved: Path, folder: Path, options: list[str], loads: list[Path], cache: Path
) -> None:
    (folder / "bad.png").write_bytes(b"no image")
    first = ran("predict", saved, folder, *options, code=1)
    assert (loads, len(list(cache.iterdir()))) == ([saved], 1)
    again = ran("predict", saved, folder, *options, code=1)
    assert loads == [saved]
    assert (rounded(again.stdout), again.stderr) == (rounded(first.stdout), first.stderr)


def test_a_twin_imports_no_torch_and_sends_no_reports(
    saved: Path, folder: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran("predict", saved, folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY")
    script = (
        "import sys\nfrom grace.learner import twins\nfrom grace.cli import main\n"
        f"twins.FOLDER = {str(cache)!r}\nsys.argv = ['grace', *sys.argv[1:]]\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "predict", saved, folder], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 6
    assert not (tmp_path / "home").exists()


class TestStale:
    def test_a_forgotten_class_leaves_no_twin(
        self, copied: Path, folder: Path, loads: list[Path], cache: Path
    ) -> None:
        ran("predict", copied, folder)
        before = list(cache.iterdir())
        ran("forget", copied, "fox", "--yes")
        assert list(cache.iterdir()) == []
        fresh = [ran("predict", copied, folder, "--top", "9").stdout for _ in range(2)]
        assert fresh[0] == fresh[1]
        assert "fox" not in fresh[1]
        assert set(cache.iterdir()).isdisjoint(before)

    def test_what_is_forgotten_meanwhile_leaves_none(self, copied: Path, cache: Path) -> None:
        own, document = Learner.load(copied), contents(copied)
        Learner.load(copied).forget("fox")
        answering.make_twin(own, document)
        assert list(cache.iterdir()) == []

    def test_one_that_is_made_while_a_class_is_forgotten_does_not_stay(
        self, copied: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own, document = Learner.load(copied), contents(copied)
        write = atomic.write_bytes

        def made_before(path: Path, data: bytes) -> None:
            if path.name == "0005.json":
                answering.make_twin(own, document)
                assert len(list(cache.iterdir())) == 1
            write(path, data)

        monkeypatch.setattr(atomic, "write_bytes", made_before)
        Learner.load(copied).forget("fox")
        assert contents(copied) != document
        assert list(cache.iterdir()) == []

    def test_one_whose_version_is_removed_meanwhile_does_not_stay(
        self, copied: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own, document = Learner.load(copied, version=1), contents(copied, 1)
        write = twins.write

        def removed_before(*others: Any) -> None:
            ran("prune", copied, "--keep", "0")
            write(*others)

        monkeypatch.setattr(twins, "write", removed_before)
        answering.make_twin(own, document)
        assert list(cache.iterdir()) == []

    def test_one_whose_version_cannot_be_read_does_not_stay(
        self, copied: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own, document = Learner.load(copied), contents(copied)
        write = twins.write

        def refused(*others: Any) -> bytes:
            raise PermissionError

        def refused_after(*others: Any) -> None:
            write(*others)
            monkeypatch.setattr(ModelStore, "document_bytes", refused)

        monkeypatch.setattr(twins, "write", refused_after)
        answering.make_twin(own, document)
        assert list(cache.iterdir()) == []

    def test_each_version_has_its_own(self, copied: Path, folder: Path, cache: Path) -> None:
        ran("predict", copied, folder)
        ran("predict", copied, folder, "--version", "1")
        assert len(list(cache.iterdir())) == 2
        ran("rollback", copied, "1")
        expected = Learner.load(copied).class_names
        assert expected == ["apple", "Käse"]
        lines = ran("predict", copied, folder, "--top", "9", "--format", "jsonl").stdout
        assert {g["class"] for g in json.loads(lines.splitlines()[0])["top"]} == set(expected)
        ran("prune", copied, "--keep", "0")
        assert len(list(cache.iterdir())) == 1

    def test_damaged_weights_are_refused_as_ever(
        self, copied: Path, folder: Path, graph: bytes, loads: list[Path], cache: Path
    ) -> None:
        put(cache, copied, graph)
        ran("predict", copied, folder)
        assert loads == []
        ref = ModelStore.open(copied).document(5).parts["head"]
        path = copied / "objects" / f"{ref.sha256}.safetensors"
        path.write_bytes(path.read_bytes()[:-1] + b"\x01")
        assert "does not match its SHA-256" in ran("predict", copied, folder, code=2).stderr


def signed(rest: bytes) -> bytes:
    """The file that says of itself that it is whole."""
    return hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


def with_external_data(graph: bytes) -> bytes:
    """The graph with one tensor in a file."""
    import onnx

    model = onnx.load_from_string(graph)
    tensor = model.graph.initializer[0]
    length = str(len(tensor.raw_data))
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "/dev/zero", "offset": "0", "length": length}.items():
        tensor.external_data.add(key=key, value=value)
    return bytes(model.SerializeToString())


HEAD = json.dumps(FACTS.model_dump()).encode()
DAMAGES: dict[str, Callable[[bytes, bytes], bytes]] = {
    "empty": lambda data, graph: b"",
    "cut": lambda data, graph: data[:-7],
    "a byte of its facts": lambda data, graph: data[:80] + b"9" + data[81:],
    "a byte of its graph": lambda data, graph: data[:-900] + b"\x00\x11" + data[-898:],
    "another graph": lambda data, graph: signed(HEAD + b"\n" + b"no graph"),
    "no graph": lambda data, graph: signed(b"\n"),
    "facts of another kind": lambda data, graph: signed(b'{"score_name": 3}\n' + graph),
    "data elsewhere": lambda data, graph: signed(HEAD + b"\n" + with_external_data(graph)),
}


def put(cache: Path, home: Path, graph: bytes) -> Path:
    """Write the twin of a learner by hand; return its file."""
    assert twins.is_missing(contents(home))
    twins.write(contents(home), FACTS, graph)
    (path,) = cache.iterdir()
    return path


class TestDamaged:
    @pytest.mark.parametrize("damage", DAMAGES)
    def test_it_counts_as_absent(
        self,
        saved: Path,
        graph: bytes,
        cache: Path,
        damage: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        class LoadedError(Exception):
            pass

        def load(*others: Any) -> None:
            raise LoadedError

        monkeypatch.setattr(Learner, "load", load)
        path = put(cache, saved, graph)
        with twin.answering(saved) as answerer:
            assert answerer.class_names == ("apple", "Käse", "cat", "dog", "fox")
        path.write_bytes(DAMAGES[damage](path.read_bytes(), graph))
        with pytest.raises(LoadedError), twin.answering(saved):
            pass
        assert twins.is_missing(contents(saved)) or damage == "no graph"

    def test_torch_answers_and_a_new_one_is_made(
        self, saved: Path, folder: Path, graph: bytes, loads: list[Path], cache: Path
    ) -> None:
        path = put(cache, saved, graph)
        expected = ran("predict", saved, folder)
        path.write_bytes(path.read_bytes()[:-1])
        for _ in range(2):
            found = ran("predict", saved, folder)
            assert (found.stdout, found.stderr) == (expected.stdout, "")
        assert loads == [saved]

    def test_gigabytes_links_and_pipes_are_not_read(
        self, saved: Path, graph: bytes, cache: Path
    ) -> None:
        path = put(cache, saved, graph)
        elsewhere = path.rename(cache.parent / "other")
        with path.open("wb") as file:
            file.truncate(1 << 36)
        assert twins.read(contents(saved)) is None
        path.symlink_to(elsewhere)
        assert twins.read(contents(saved)) is None
        os.mkfifo(path)
        assert twins.read(contents(saved)) is None
        assert elsewhere.exists()
        # What was in its place is removed.
        assert twins.is_missing(contents(saved))

    def test_a_graph_of_other_images_or_classes_is_refused(self, saved: Path, graph: bytes) -> None:
        for shape, num_classes in (((3, 8, 9), 5), ((3, 8, 8), 6)):
            with pytest.raises(ValueError, match="of another learner"):
                run_graph(graph, shape, num_classes, 1)

    def test_a_folder_that_others_can_write_is_not_used(
        self, saved: Path, folder: Path, graph: bytes, loads: list[Path], cache: Path
    ) -> None:
        put(cache, saved, graph)
        cache.chmod(0o777)
        ran("predict", saved, folder)
        assert loads == [saved]
        assert len(list(cache.iterdir())) == 1


class TestMaking:
    def test_nothing_is_made_where_it_cannot_be(
        self, saved: Path, folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        own, document = Learner.load(saved), contents(saved)
        with monkeypatch.context() as patch:
            patch.setattr(twin, "find_spec", lambda name: None)
            ran("predict", saved, folder)
        with monkeypatch.context() as patch:
            patch.setenv(twins.VARIABLE, "0")
            answering.make_twin(own, document)
        with monkeypatch.context() as patch:
            patch.setattr(twins, "MAX_BYTES", 1000)
            answering.make_twin(own, document)
        assert not cache.exists()
        with monkeypatch.context() as patch:
            patch.setattr("os.access", lambda path, mode: False)
            answering.make_twin(own, document)
        cache.rmdir()
        cache.parent.rmdir()
        cache.parent.write_text("A file where a folder should be made.")
        answering.make_twin(own, document)
        cache.parent.unlink()
        answering.make_twin(own, document)
        assert len(list(cache.iterdir())) == 1

    @pytest.mark.parametrize("failure", ["exporter", "answers"])
    def test_what_fails_is_not_tried_again(
        self,
        saved: Path,
        failure: str,
        graph: bytes,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        tries = iter(range(1))

        def traced(*others: Any) -> bytes:
            next(tries)
            if failure == "exporter":
                os.write(1, b"As torch does, past Python.")
                raise RuntimeError("an operator is missing")
            return graph

        own = Learner.load(saved)
        with torch.no_grad():
            own.method.network.head.bias += torch.arange(5)
        monkeypatch.setattr(answering, "traced", traced)
        answering.make_twin(own, contents(saved))
        assert not twins.is_missing(contents(saved))
        assert twins.read(contents(saved)) is None
        answering.make_twin(own, contents(saved))
        assert next(tries, None) is None
        assert capfd.readouterr() == ("", "")

    def test_infinite_scores_of_a_forged_learner_make_none(self, saved: Path) -> None:
        own = Learner.load(saved)
        own.model.state.recogniser = Recogniser(familiarities=torch.tensor([0.5, math.inf]))
        assert answering.twin_of(own) == (None, b"")

    def test_those_not_used_for_longest_are_removed(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(twins, "MAX_FILES", 3)
        documents = [bytes([number]) for number in range(5)]
        twins.is_missing(documents[0])
        for age, document in enumerate(documents):
            twins.write(document, FACTS, b"graph")
            for path in cache.glob(f"{hashlib.sha256(document).hexdigest()}-*"):
                os.utime(path, (age, age))
            if age == 2:
                assert twins.read(documents[0]) == (FACTS, b"graph")
        assert [twins.read(own) is not None for own in documents] == [
            True,
            False,
            False,
            True,
            True,
        ]
        monkeypatch.setattr(twins, "MAX_ALL_BYTES", 700)
        twins.write(b"large", FACTS, bytes(500))
        assert len(list(cache.iterdir())) == 1

    def test_files_of_others_stay(self, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(twins, "MAX_FILES", 1)
        cache.mkdir(parents=True)
        (cache / "thesis.txt").write_text("Somebody made the folder a link to another one.")
        for document in (b"first", b"second"):
            twins.write(document, FACTS, b"graph")
        assert {path.suffix for path in cache.iterdir()} == {".txt", ".twin"}
        assert twins.read(b"second") == (FACTS, b"graph")

    def test_one_that_is_too_large_is_not_made_again(
        self, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(twins, "MAX_BYTES", 1000)
        assert twins.is_missing(b"document")
        twins.write(b"document", FACTS, bytes(1000))
        assert not twins.is_missing(b"document")
        assert twins.read(b"document") is None

    def test_two_that_write_at_once_leave_one_whole(self, cache: Path) -> None:
        graphs = {bytes([number]) * 100_000 for number in range(1, 9)}
        twins.is_missing(b"document")

        def write(graph: bytes) -> None:
            twins.write(b"document", FACTS, graph)
            found = twins.read(b"document")
            assert found[1] in graphs

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(write, sorted(graphs)))
        assert len(list(cache.iterdir())) == 1
