"""Learners that come back: bit for bit what they were, and they go on as if they had never left."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.base.errors import GraceError
from grace.data.images import LabelledImages
from grace.learner.document import Creation, Document, UpdateRecord
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.learner.versions import carried_out_here
from grace.methods.grace import Grace
from grace.settings.experiment import EngineSettings, ExperimentSettings, MemorySettings
from support.tiny_streams import SIZE, class_names, labelled, recipe, settings

pytestmark = pytest.mark.usefixtures("tiny_backbones")

# It compresses, grows, and compresses beside a fixed backbone. The contract suite saves a learner
# of every method.
GRACE = Grace.Settings(base=recipe(2), grow=recipe(), compress=recipe(), expand_at=(3,))
# The last one brings images of a known class, too.
STREAM = ({0: 9, 1: 9, 2: 9}, {3: 8}, {4: 8, 5: 10}, {1: 5, 6: 8})
PROBE = labelled(dict.fromkeys(range(7), 3), seed=5).images
MEMORY = MemorySettings(size=30, validation=2)


def images_of(step: int) -> LabelledImages:
    return labelled(STREAM[step], seed=step)


def teach(made: Learner, step: int, **options: Any) -> UpdateRecord:
    data = images_of(step)
    return made.update(data.images, class_names(data), **options)


def create(directory: Path | None = None) -> Learner:
    chosen = settings(GRACE, memory=MEMORY)
    return Learner.create(chosen, shape=(3, SIZE, SIZE), directory=directory)


def comparable(document: Document) -> dict[str, Any]:
    """All that a version says but when it was made and how long that took."""
    raw = document.model_dump(mode="json")
    del raw["created"]
    for update in raw["history"]:
        for key in ("seconds", "date", "work", "num_bytes"):
            del update[key]
    return raw


def files_of(directory: Path) -> set[str]:
    return {path.stem for path in (directory / "objects").iterdir()}


Straight = tuple[Learner, list[Tensor]]


@pytest.fixture(scope="module")
def straight(tiny_backbones: None, tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """A learner that stayed in one process, and what it said after each update."""
    made, said = create(tmp_path_factory.mktemp("straight") / "home"), []
    for step in range(len(STREAM)):
        teach(made, step)
        said.append(made.predict_proba(PROBE))
    return made, said


def test_a_learner_that_is_loaded_for_every_update_is_the_same(
    straight: Straight, tmp_path: Path
) -> None:
    home, (stayed, said) = tmp_path / "home", straight
    create(home)
    for step in range(len(STREAM)):
        teach(Learner.load(home), step)
    again = Learner.load(home)
    assert torch.equal(again.predict_proba(PROBE), said[-1])
    ours, theirs = ModelStore.open(home).survey().documents, stayed.home.survey().documents
    # Equal references are equal bytes: they are named after their content.
    assert list(map(comparable, ours)) == list(map(comparable, theirs))
    assert files_of(home) == files_of(stayed.home.path)


def test_a_learner_from_memory_is_saved_once(
    straight: Straight, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, (stayed, said) = create(), straight
    with pytest.raises(ValueError, match="nothing has been learnt yet"):
        made.save(tmp_path / "home")
    for step in (0, 1, 2):
        teach(made, step)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ModelStore, "write", full)
        with pytest.raises(OSError, match="No space left"):
            made.save(tmp_path / "full")
    assert (made.home, made.version) == (None, None)
    assert (made.save(tmp_path / "home"), made.save(tmp_path / "home")) == (1, 1)
    with pytest.raises(ValueError, match=r"this learner lives in .*: copy that directory"):
        made.save(tmp_path / "other")
    learner = Learner.load(str(tmp_path / "home"))
    document = ModelStore.open(tmp_path / "home").document(1)
    assert document.parts == stayed.home.document(3).parts
    assert len(document.history) == 3
    for one in (made, learner):
        assert torch.equal(one.predict_proba(PROBE), said[2])
    # Both are version 1 of one home: the first to go on wins.
    teach(learner, 3)
    assert torch.equal(learner.predict_proba(PROBE), said[3])
    with pytest.raises(ValueError, match="has changed since this learner was loaded"):
        teach(made, 3)


def test_versions_share_what_did_not_change(straight: Straight) -> None:
    learner, _ = straight
    home, documents = learner.home.path, learner.home.survey().documents
    one, two, three, four = documents
    told = [update.outcome.verdict for update in learner.history]
    assert told == ["start", "compress", "grow", "compress"]
    # It compressed, then grew beside what it was, then compressed the second backbone.
    assert one.parts["backbone.0"] != two.parts["backbone.0"]
    assert two.parts["backbone.0"] == three.parts["backbone.0"] == four.parts["backbone.0"]
    assert three.parts["backbone.1"] != four.parts["backbone.1"]
    # 9 // 5 = 1 image of each early class is held out, for good; class 5 has 10 images.
    assert one.validation == {c: three.validation[c] for c in (0, 1, 2)}
    header = len(b'{"images":{"dtype":"U8","shape":[1,3,8,8],"data_offsets":[0,192]}}')
    padded = 8 + -(-header // 8) * 8
    assert [three.validation[c].bytes - padded for c in (0, 4, 5)] == [192, 192, 2 * 192]
    assert files_of(home) == {ref.sha256 for document in documents for ref in document.refs}
    for document in documents:
        names = {ref.sha256 for ref in document.refs}
        found = (home / "versions" / f"{document.number:04d}.json").stat().st_size
        found += sum((home / "objects" / f"{n}.safetensors").stat().st_size for n in names)
        assert document.num_bytes == found
        # What the history says was counted before there was a document.
        assert document.history[-1].num_bytes == found - len(document.dump())


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_says_what_it_said_and_goes_on(
    version: int, straight: Straight, tmp_path: Path
) -> None:
    stayed, said = straight
    home = Path(shutil.copytree(stayed.home.path, tmp_path / "home"))
    assert torch.equal(Learner.load(home, version).predict_proba(PROBE), said[version - 1])
    assert ModelStore.open(home).current() == 4
    learner = Learner.load(home)
    learner.rollback(version)
    assert ModelStore.open(home).current() == version
    assert torch.equal(learner.predict_proba(PROBE), said[version - 1])
    assert len(learner.history) == version
    # Without ``again`` the version that learnt them from this one is put in use.
    teach(learner, version, again=True)
    repeated = teach(learner, version)
    assert (repeated, ModelStore.open(home).numbers()) == (learner.history[-1], [1, 2, 3, 4, 5])
    before, after = (ModelStore.open(home).document(number) for number in (version + 1, 5))
    assert (after.parent, after.parts, after.exemplars) == (version, before.parts, before.exemplars)
    assert torch.equal(learner.predict_proba(PROBE), said[version])
    learner.rollback(version)
    assert teach(learner, version) == repeated
    assert (learner.version, ModelStore.open(home).current()) == (5, 5)
    with pytest.raises(ValueError, match=r"has no version 9 \(it has 1, 2, 3, 4, 5\)"):
        learner.rollback(9)
    assert torch.equal(learner.predict_proba(PROBE), said[version])


def test_a_home_must_be_new(straight: Straight, tmp_path: Path) -> None:
    creation = Creation.of(ExperimentSettings(), (3, 8, 8), (0.5,) * 3, (0.5,) * 3)
    taken = straight[0].home.path
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    (tmp_path / "file").write_text("text")
    (tmp_path / "model.json").write_text("{}")  # Another program's is not in the way.
    for path, message in (
        (tmp_path / "photos", "exists already and is no learner"),
        (tmp_path / "file", "exists already and is no learner"),
        (taken, "exists already and is another learner"),
        (taken / "inner", rf"lies in the learner '{taken}'.*a place outside$"),
        (taken / "versions" / "a" / "b", rf"lies in the learner '{taken}'.*a place outside$"),
    ):
        before = sorted(path.rglob("*"))
        with pytest.raises(GraceError, match=message):
            ModelStore.create(path, creation)
        assert sorted(path.rglob("*")) == before
    # An empty folder is as good as none.
    (tmp_path / "empty").mkdir()
    assert ModelStore.create(tmp_path / "empty", creation).creation == creation
    with pytest.raises(ValueError, match="this learner has no home: save it"):
        create().rollback(1)


def test_a_file_cannot_ask_for_more_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    wishes = {"threads": 4096, "eval_batch_size": 10**9, "device": "cuda", "precision": "float16"}
    saved = ExperimentSettings(engine=EngineSettings(**wishes))
    for has_cuda, expected in ((False, ("auto", "float32")), (True, ("cuda", "float16"))):
        monkeypatch.setattr("torch.cuda.is_available", lambda found=has_cuda: found)
        here = carried_out_here(saved, None).engine
        assert (here.device, here.precision) == expected
        assert (here.threads, here.eval_batch_size) == (2, 512)
        # What is given comes first.
        assert carried_out_here(saved, saved.engine) == saved
