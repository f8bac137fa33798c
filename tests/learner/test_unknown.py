"""What is unknown is told at a stated rate of false alarms."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grace.data.memory import Room
from grace.learner.admission import Admission
from grace.learner.familiarity import Reference, UnknownScore, familiarity, most_score_bytes
from grace.learner.learner import Learner
from grace.learner.unknown import cutoff, num_bytes
from grace.settings.experiment import MemorySettings
from grace.settings.methods import FinetuneSettings, GraceSettings, ReplaySettings
from support.tiny_streams import SIZE, class_names, labelled, recipe, settings

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def ascending(count: int) -> torch.Tensor:
    return torch.arange(1.0, count + 1)


class TestFamiliarity:
    def test_by_hand(self) -> None:
        scores = torch.tensor([[0.0, 0.0], [math.log(3), math.log(5)], [-math.log(4), -1e4]])
        # log(1 + 1), log(3 + 5), and of a masked class nothing is left: log(1/4).
        expected = torch.tensor([math.log(2), math.log(8), -math.log(4)])
        torch.testing.assert_close(familiarity(scores), expected)

    def test_large_scores_do_not_overflow(self) -> None:
        scores = torch.tensor([[1000.0, 1000.0]], dtype=torch.bfloat16)
        torch.testing.assert_close(familiarity(scores), torch.tensor([1000 + math.log(2)]))


class TestCutoff:
    @pytest.mark.parametrize(
        ("count", "rate", "rank"),
        # k = floor(a·(n + 1)), the k-th smallest of 1, 2, …, n; 0.05·20 is one, not less.
        [(19, 0.05, 1), (38, 0.05, 1), (39, 0.05, 2), (9, 0.5, 5), (99, 0.01, 1), (3, 0.99, 3)],
    )
    def test_by_hand(self, count: int, rate: float, rank: int) -> None:
        shuffled = ascending(count)[torch.randperm(count)]
        assert cutoff(shuffled, rate) == rank

    @pytest.mark.parametrize(
        ("rate", "enough"),
        # a·(n + 1) ≥ 1, so n ≥ 1/a - 1: where 1/a is whole in decimals, not only in binary.
        [(0.05, 19), (0.1, 9), (0.01, 99), (0.001, 999), (0.07, 14), (1 / 3, 2), (0.9, 1)],
    )
    def test_how_many_images_it_takes(self, rate: float, enough: int) -> None:
        for count in (0, enough - 1):
            message = f"need at least {enough} held-out images, this learner has {count}"
            with pytest.raises(ValueError, match=message):
                cutoff(ascending(count), rate)
        assert cutoff(ascending(enough), rate) == 1.0

    @given(st.floats(1e-4, 0.9999))
    def test_the_number_named_is_the_smallest_that_does(self, rate: float) -> None:
        with pytest.raises(ValueError, match="need at least") as refusal:
            cutoff(torch.empty(0), rate)
        enough = int(str(refusal.value).split("at least ")[1].split()[0])
        assert cutoff(ascending(enough), rate) == 1.0
        if enough > 1:
            with pytest.raises(ValueError, match="need at least"):
                cutoff(ascending(enough - 1), rate)

    @pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 1.5, math.nan, math.inf])
    def test_rates_that_are_none(self, rate: float) -> None:
        with pytest.raises(ValueError, match=r"% false alarms must lie between 0 and 100 %"):
            cutoff(ascending(100), rate)

    def test_the_smallest_rate_is_refused_in_words(self) -> None:
        with pytest.raises(ValueError, match="need at least"):
            cutoff(ascending(100), 5e-324)

    @pytest.mark.parametrize(("count", "rate"), [(19, 0.05), (30, 0.1), (57, 0.05), (24, 0.3)])
    def test_false_alarms_keep_the_promised_rate(self, count: int, rate: float) -> None:
        """A fresh image of a learnt class falls below the cutoff with probability k/(n + 1)."""
        draws = torch.rand(4000, count + 1, generator=torch.Generator().manual_seed(0))
        lowest = torch.tensor([cutoff(own[:-1], rate) for own in draws])
        share = float((draws[:, -1] < lowest).double().mean())
        expected = math.floor(rate * (count + 1) + 1e-9) / (count + 1)
        assert expected <= rate
        assert share == pytest.approx(expected, abs=3 * math.sqrt(expected / 4000))
        # Ties only make it rarer: whole numbers of a skewed law.
        whole = (10 / (1 - draws)).round()
        lowest = torch.tensor([cutoff(own[:-1], rate) for own in whole])
        assert float((whole[:, -1] < lowest).double().mean()) <= share


@pytest.fixture(scope="module")
def taught(tiny_backbones: None) -> Learner:
    """Knows two bright quadrants; ten images of each are held out."""
    method = FinetuneSettings(base=recipe(20), update=recipe())
    made = Learner.create(
        settings(method, memory=MemorySettings(size=0, validation=10)), shape=(3, SIZE, SIZE)
    )
    data = labelled({0: 50, 1: 50})
    made.update(data.images, class_names(data))
    return made


class TestLearner:
    def test_its_familiarities_are_those_of_its_held_out_images(self, taught: Learner) -> None:
        held = [taught.held_out.of_class(index) for index in (0, 1)]
        found = torch.cat([taught.decision_function(images) for images in held])
        expected = found.double().exp().sum(dim=1).log().sort().values.float()
        assert len(expected) == 20
        torch.testing.assert_close(taught.familiarities, expected)

    def test_images_below_the_cutoff_are_unknown(self, taught: Learner) -> None:
        probe = labelled({0: 20, 1: 20, 6: 20}, seed=3).images
        own = taught.decision_function(probe).double().exp().sum(dim=1).log()
        # 0.1·21: the second smallest of twenty.
        lowest = float(taught.familiarities.sort().values[1])
        assert taught.unknown(probe, 0.1) == (own < lowest).tolist()
        told = taught.unknown(probe, 0.1)
        # Of dark quadrants it knows nothing; of the others a tenth may be taken for unknown.
        assert told[40:] == [True] * 20
        assert sum(told[:40]) <= 8

    def test_too_few_images_are_told(self, taught: Learner) -> None:
        probe = labelled({0: 2}, seed=3).images
        assert len(taught.unknown(probe)) == 2
        with pytest.raises(ValueError, match="1 % false alarms need at least 99 held"):
            taught.unknown(probe, 0.01)


def large(classes: range, count: int) -> tuple[torch.Tensor, list[str]]:
    """Return images of 32 pixels, and their class names."""
    data = labelled(dict.fromkeys(classes, count))
    pixels = data.images.gather(torch.arange(len(data)))
    return pixels.repeat_interleave(4, 2).repeat_interleave(4, 3), class_names(data)


def kept(learner: Learner) -> set[int]:
    """Return the numbers of exemplars of the classes."""
    memory = learner.model.state.method.memory
    return {len(memory.of_class(index)) for index in memory.classes}


def test_exemplars_leave_room_for_the_better_score_of_a_trained_network() -> None:
    """One exemplar of each of four classes has 12,288 bytes, the score 17,680: it never fitted."""
    twice = recipe(epochs=2)
    memory = MemorySettings(size=None, max_mb=1.8, validation=10)
    method = ReplaySettings(base=twice, update=twice)
    made = Learner.create(settings(method, memory=memory), shape=(3, 32, 32))
    made.update(*large(range(4), 125))
    (count,) = kept(made)
    assert 50 < count < 115, "the ceiling is full"
    assert made.model.state.recogniser.score.name == "energy+mahalanobis"


def test_a_grown_network_has_room_for_its_larger_score(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its 128 features need 36 kB, one exemplar of each class 18 kB: it never fits by chance."""
    # Without the limit of 1 % a low ceiling is enough, which few images fill.
    monkeypatch.setattr(Admission, "_score_bytes", staticmethod(most_score_bytes))
    once = recipe(epochs=1)
    memory = MemorySettings(size=None, max_mb=1.3, validation=10)
    method = GraceSettings(base=once, grow=once, compress=once, expand_at=[2])
    made = Learner.create(settings(method, memory=memory), shape=(3, 32, 32))
    for classes in (range(4), range(4, 6)):
        made.update(*large(classes, 50))
    (count,) = kept(made)
    assert 5 < count < 40, "the ceiling is full"
    state = made.model.state
    assert len(state.method.network.backbones) == 2
    assert state.recogniser.score.name == "energy+mahalanobis"
    # A lower ceiling drops exemplars, not the score.
    made.change_settings("memory.max_mb=1.2")
    (fewer,) = kept(made)
    assert fewer < count
    assert made.model.state.recogniser.score.name == "energy+mahalanobis"


@pytest.mark.parametrize(("width", "num_classes"), [(8, 3), (64, 5), (100, 4)])
def test_the_most_bytes_of_a_score_are_just_enough(width: int, num_classes: int) -> None:
    draws = torch.Generator().manual_seed(0)
    labels = torch.arange(num_classes).repeat_interleave(40)
    features = torch.randn(len(labels), width, generator=draws)
    logits = torch.randn(len(labels), num_classes, generator=draws)
    reference = Reference(features, labels)
    score = UnknownScore.fitted("energy+mahalanobis", reference, features, logits)
    most = most_score_bytes(width, num_classes)
    # Of D features, D - 1 axes can differ from the mean variance.
    assert num_bytes(score) == most - (4 * width if width <= 64 else 0)


def test_a_score_that_leaves_no_exemplar_gets_no_room() -> None:
    room = Room(1000, image_bytes=100, score_bytes=lambda width, num_classes: width * num_classes)
    assert room.for_score(2, 600, 100) == 200
    assert room.for_score(2, 601, 100) == 0
    assert Room(1000, 100).for_score(2, 0, 100) == 0


@pytest.mark.parametrize(("max_mb", "expected"), [(1.767, 0), (1.769, 17_680)])
def test_a_score_of_more_than_a_hundredth_of_the_ceiling_gets_no_room(
    max_mb: float, expected: int
) -> None:
    memory = MemorySettings(size=None, max_mb=max_mb, validation=0)
    made = Learner.create(settings(FinetuneSettings(), memory=memory), shape=(3, 32, 32))
    made.update(*large(range(4), 2))
    room = made.model.state.method.memory.room
    assert room is not None
    assert room.for_score(4, 0, 64) == expected
