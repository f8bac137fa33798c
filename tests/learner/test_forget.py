"""A forgotten class: its images gone everywhere, its name never said, its place kept."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from grace.base.errors import GraceError
from grace.engine.phase import Phase, Work
from grace.learner.document import UpdateRecord
from grace.learner.learner import Learner
from grace.learner.store import ModelStore
from grace.methods.grace import Grace
from grace.nn.heads import LinearHead, align_weights
from grace.nn.losses.classification import cross_entropy
from grace.nn.losses.distillation import logit_distillation
from grace.settings.experiment import MemorySettings
from grace.settings.method import BaseMethodSettings
from support.contract import VARIANTS
from support.driven import batch
from support.interruptions import call_number, interrupted
from support.tiny_streams import SIZE, class_names, labelled, pictures, recipe, settings, watch

pytestmark = pytest.mark.usefixtures("tiny_backbones")

GRACE = Grace.Settings(base=recipe(3), grow=recipe(), compress=recipe(), expand_at=(3,))
PROBE = labelled(dict.fromkeys(range(4), 6), seed=9).images
OF_1 = torch.cat([pictures(1, 10), pictures(1, 5, seed=1)])
"""All images of class 1 that ``original`` was taught."""


def create(method: BaseMethodSettings = GRACE, home: Path | None = None, **memory: Any) -> Learner:
    kept = MemorySettings(**{"size": 20, "validation": 2} | memory)
    return Learner.create(settings(method, memory=kept), shape=(3, SIZE, SIZE), directory=home)


def teach(made: Learner, counts: Mapping[int, int], seed: int = 0, **options: Any) -> UpdateRecord:
    data = labelled(counts, seed=seed)
    return made.update(data.images, class_names(data), **options)


def holders(home: Path, images: Tensor) -> list[str]:
    """Files below a home that contain the bytes of any of these images."""
    wanted = [image.numpy().tobytes() for image in images]
    files = [path for path in sorted(home.rglob("*")) if path.is_file()]
    return [path.name for path in files if any(w in path.read_bytes() for w in wanted)]


@pytest.fixture(scope="module")
def original(tiny_backbones: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four versions, the third in use; class 1 is known to all, class 3 to the last two."""
    made = create(home=tmp_path_factory.mktemp("original") / "home")
    teach(made, {0: 10, 1: 10})
    teach(made, {2: 10, 1: 5}, seed=1)
    teach(made, {3: 10})
    teach(made, {4: 10, 3: 6}, seed=2)
    made.rollback(3)
    return made.home.path


@pytest.fixture
def home(original: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(original, tmp_path / "home"))


def test_its_images_are_gone_from_every_version_and_none_says_its_name(home: Path) -> None:
    others = torch.cat([pictures(0, 10), pictures(2, 10, seed=1), pictures(3, 10)])
    kept = holders(home, others)
    # Exemplars of several versions, and held-out images.
    assert len(holders(home, OF_1)) >= 3
    learner = Learner.load(home)
    updates, familiar = learner.history, learner.familiarities
    assert "class 1" in learner.predict(PROBE)
    learner.forget("class 1")
    assert holders(home, OF_1) == []
    assert holders(home, others) == kept
    assert not (home / "change.json").exists()
    assert (learner.held_out.count(1), len(learner.method.memory.of_class(1))) == (0, 0)
    store = ModelStore.open(home)
    for document in store.survey().documents:
        assert document.forgotten == (1,)
        assert document.class_names[:2] == ("class 0", "class 1")
        assert not {1} & {*document.exemplars, *document.validation, *document.original_counts}
    loaded = [Learner.load(home, number) for number in store.numbers()]
    for one in [learner, *loaded]:
        probabilities = one.predict_proba(PROBE)
        assert torch.equal(probabilities[:, 1], torch.zeros(24))
        torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(24))
        assert torch.equal(one.decision_function(PROBE)[:, 1], torch.full((24,), -1e4))
        assert "class 1" not in one.predict(PROBE)
        assert torch.equal(one.scores(PROBE)["nearest_mean"][:, 1], torch.full((24,), -1e4))
    assert torch.equal(loaded[2].predict_proba(PROBE), learner.predict_proba(PROBE))
    # What is unknown is told by the classes left; the history still tells of it.
    logits = [
        learner.decision_function(learner.held_out.of_class(index))[:, [0, 2, 3]]
        for index in learner.held_out.classes
    ]
    energies = torch.cat(logits).double().exp().sum(dim=1).log().sort().values.float()
    assert len(energies) == len(familiar) - 2
    torch.testing.assert_close(learner.familiarities, energies)
    assert torch.equal(loaded[2].familiarities, learner.familiarities)
    assert loaded[2].history == updates == learner.history
    # What is learnt later has none of them either.
    teach(learner, {5: 8})
    assert holders(home, OF_1) == []
    assert learner.class_names == [f"class {i}" for i in (0, 1, 2, 3, 5)]


def test_a_class_that_only_other_versions_know(home: Path) -> None:
    pixels = torch.cat([pictures(3, 10), pictures(3, 6, seed=2)])
    learner = Learner.load(home)
    learner.rollback(1)
    said = learner.predict_proba(PROBE)
    assert holders(home, pixels) != []
    learner.forget("class 3")
    assert holders(home, pixels) == []
    assert [d.forgotten for d in ModelStore.open(home).survey().documents] == [(), (), (3,), (3,)]
    assert torch.equal(learner.predict_proba(PROBE), said)


def test_without_a_home_and_the_last_class(tmp_path: Path) -> None:
    made = create(VARIANTS["replay"], size=12)
    teach(made, {0: 10, 1: 10, 2: 10})
    made.forget("class 1")
    made.save(tmp_path / "home")
    assert holders(tmp_path / "home", pictures(1, 10)) == []
    loaded = Learner.load(tmp_path / "home")
    assert torch.equal(loaded.predict_proba(PROBE), made.predict_proba(PROBE))
    # 12 // 3 live classes; of all four it would be 3.
    teach(made, {3: 10})
    assert [len(made.method.memory.of_class(i)) for i in range(4)] == [4, 0, 4, 4]
    with pytest.raises(GraceError, match=r"no class 'cat' \(known: class 0"):
        made.forget("cat")
    for name in ("class 0", "class 2"):
        made.forget(name)
    with pytest.raises(GraceError, match="'class 3' is the last class of"):
        made.forget("class 3")
    assert set(made.predict(PROBE)) == {"class 3"}
    # The first version has no class left: it cannot come back.
    for refused in (lambda: made.rollback(1), lambda: Learner.load(tmp_path / "home", 1)):
        with pytest.raises(GraceError, match=r"version 1 of .* all its classes were forgotten"):
            refused()
    assert ModelStore.open(tmp_path / "home").current() == made.version == 2


@pytest.mark.parametrize(
    "name",
    ["grace-compresses", "grace-grows", "der", "foster", "memo", "wa", "icarl", "ewc", "joint"],
)
def test_later_updates_do_not_bring_it_back(name: str) -> None:
    made = create(VARIANTS[name])
    teach(made, {0: 8, 1: 8, 2: 8})
    made.forget("class 1")
    for counts in ({3: 8}, {4: 8, 5: 8}):
        teach(made, counts)
        assert not bool(made.predict_proba(PROBE)[:, 1].any())
        assert all(1 not in s.argmax(dim=1).tolist() for s in made.scores(PROBE).values())
        assert 1 not in made.method.memory.classes
    old = sum(made.held_out.count(index) for index in (0, 2, 3))
    assert made.history[-1].accuracy.num_old == old


class TestTheHead:
    def head(self) -> LinearHead:
        head = LinearHead(3, 4, torch.Generator().manual_seed(0))
        head.mask([1])
        return head

    def test_a_masked_row_gets_no_gradient(self) -> None:
        head, teacher = self.head(), self.head()
        features = torch.tensor([[1.0, 2.0, 3.0], [0.5, 0.0, -1.0]])
        labels = torch.tensor([0, 3])
        with torch.no_grad():
            teacher.weight += 0.3
            goal = teacher(features)
        logits = head(features)
        loss = cross_entropy(logits, labels) + logit_distillation(logits, goal, 2.0)
        weights, biases = torch.autograd.grad(loss, [head.weight, head.bias])
        assert torch.equal(weights[1], torch.zeros(3))
        assert float(biases[1]) == 0.0
        assert bool((weights[[0, 2, 3]].norm(dim=1) > 0).all())
        # As if the class had never been: the same losses over the other three rows.
        free = features @ head.weight[[0, 2, 3]].T + head.bias[[0, 2, 3]]
        taught = features @ teacher.weight[[0, 2, 3]].T + teacher.bias[[0, 2, 3]]
        alone = cross_entropy(free, torch.tensor([0, 2])) + logit_distillation(free, taught, 2.0)
        torch.testing.assert_close(loss, alone)
        for dtype in (torch.float16, torch.bfloat16):
            assert logits.detach().to(dtype).softmax(dim=1)[:, 1].tolist() == [0.0, 0.0]
        # A grown head stays masked.
        scores = head.grown(5, 6, torch.Generator())(torch.ones(1, 5))[0].tolist()
        assert [place for place, score in enumerate(scores) if score == -1e4] == [1]

    def test_alignment_by_hand(self) -> None:
        head = LinearHead(2, 4, torch.Generator())
        with torch.no_grad():
            head.weight.copy_(torch.tensor([[3.0, 4.0], [100.0, 0.0], [0.0, 7.0], [0.0, 3.0]]))
        head.mask([1])
        # The live old rows are 5 and 7 long, 6 on average; with the masked one it would be 37.3.
        assert align_weights(head, 1) == pytest.approx(2.0)
        expected = torch.tensor([[3.0, 4.0], [100.0, 0.0], [0.0, 7.0], [0.0, 6.0]])
        torch.testing.assert_close(head.weight.detach(), expected)
        head.mask([0, 1, 2])
        assert align_weights(head, 1) == 1.0

    def test_weights_of_compress_by_hand(self) -> None:
        compress = Grace.Settings(base=recipe(), grow=recipe(), compress=recipe(), threshold=1.0)
        made = create(compress, size=24, validation=0)
        teach(made, {0: 10, 1: 10, 2: 10, 3: 10})
        made.forget("class 0")
        shares: dict[str, float] = {}

        def note(item: Work) -> None:
            if isinstance(item, Phase) and item.name == "compress":
                losses = item.objective(batch(item, [1, 4]))
                shares.update({name: float(loss.weight) for name, loss in losses.items()})

        watch(made, note)
        outcome = teach(made, {4: 10}).outcome
        # λ = 3 live old classes / 4 live ones, α = 0.4, β = 1.6.
        expected = {"classification": 0.25, "logits": 0.75 * 0.4, "features": 0.75 * 1.6}
        assert shares == pytest.approx(expected)
        # P = 4 classes of the backbone / (4 + 1); B = 10 / (10 + 18 exemplars // 3 live classes).
        preserved, bias = 4 / 5, 10 / 16
        assert outcome.merge_weight == pytest.approx(((preserved**5 + bias**5) / 2) ** 0.2)


def test_new_images_bring_it_back_in_its_old_place(home: Path) -> None:
    learner = Learner.load(home)
    learner.forget("class 1")
    update = teach(learner, {1: 10, 5: 8}, seed=4)
    assert (update.revived_class_names, update.new_class_names) == (("class 1",), ("class 5",))
    assert learner.class_names == [f"class {i}" for i in (0, 1, 2, 3, 5)]
    assert learner.forgotten == set()
    assert bool((learner.predict_proba(PROBE)[:, 1] > 0).all())
    # 10 images: two are held out, eight are learnt from.
    assert (learner.held_out.count(1), learner.method.memory.original_counts[1]) == (2, 8)
    assert update.accuracy.num_new == 2 + 1
    assert holders(home, pictures(1, 10)) == []
    assert holders(home, pictures(1, 10, seed=4)) != []
    again = Learner.load(home)
    assert torch.equal(again.predict_proba(PROBE), learner.predict_proba(PROBE))
    # Old versions stay without it.
    assert not bool(Learner.load(home, 3).predict_proba(PROBE)[:, 1].any())
    # The very images of an update count as new too.
    learner.forget("class 5")
    assert teach(learner, {1: 10, 5: 8}, seed=4).revived_class_names == ("class 5",)


@pytest.mark.parametrize("way", ["rollback", "forget", "update"])
def test_an_interrupted_purge_is_finished_by_the_next_change(way: str, home: Path) -> None:
    learner = Learner.load(home)
    with interrupted(ModelStore, "write", call_number(2)):
        learner.forget("class 1")
    begun = json.loads((home / "change.json").read_text())
    assert (begun["kind"], begun["class_name"]) == ("forget", "class 1")
    assert [d.forgotten for d in ModelStore.open(home).survey().documents] == [(1,), (), (), ()]
    assert holders(home, OF_1) != []
    other = Learner.load(home)
    if way == "rollback":
        other.rollback(3)
    elif way == "forget":
        other.forget("class 2")
    else:
        # What was loaded before the purge was finished is told so, and can do no harm.
        with pytest.raises(ValueError, match="has changed since this learner was loaded"):
            teach(other, {5: 8})
    assert not (home / "change.json").exists()
    assert holders(home, OF_1) == []
    assert all(1 in document.forgotten for document in ModelStore.open(home).survey().documents)
    assert "class 1" not in Learner.load(home).predict(PROBE)


def test_an_unfinished_update_comes_first(home: Path) -> None:
    learner = Learner.load(home)

    def stop(item: Work) -> None:
        if item.name == "compress":
            raise KeyboardInterrupt

    watch(learner, stop)
    with pytest.raises(KeyboardInterrupt):
        teach(learner, {6: 8})
    with pytest.raises(GraceError, match="was interrupted and may still use the images"):
        Learner.load(home).forget("class 1")
    assert [d.forgotten for d in ModelStore.open(home).survey().documents] == [()] * 4
