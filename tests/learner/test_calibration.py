"""Probabilities are calibrated, and what is unknown is told at a stated rate of false alarms."""

import math
from pathlib import Path

import pytest
import scipy.optimize
import scipy.spatial
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from grace.base.errors import DamagedError
from grace.learner.calibration import (
    SHRINKAGE,
    Recogniser,
    Seen,
    divided,
    energy,
    fit_temperature,
    mahalanobis,
    shrunk_axes,
    temperature_of,
)
from grace.learner.gate import calibration_error
from grace.learner.learner import Learner
from grace.learner.prediction import cutoff
from grace.methods.finetune import Finetune
from grace.methods.replay import Replay
from grace.nn.heads import MASKED
from grace.settings.experiment import MemorySettings
from support.tiny_streams import SIZE, class_names, labelled, recipe, settings

pytestmark = pytest.mark.usefixtures("tiny_backbones")


def ascending(count: int) -> torch.Tensor:
    return torch.arange(1.0, count + 1)


def clusters(num: int) -> tuple[Seen, Seen]:
    """Classes along the axes of eight features: ten exemplars, ten held-out images of each."""
    draws = torch.Generator().manual_seed(num)
    labels = torch.arange(num).repeat_interleave(10)

    def seen() -> Seen:
        features = 3 * torch.eye(8)[labels] + 0.2 * torch.randn(len(labels), 8, generator=draws)
        return Seen(features, features[:, :num], labels)

    return seen(), seen()


class TestTemperature:
    @hypothesis_settings(max_examples=40, deadline=None)
    @given(st.integers(0, 10_000), st.floats(0.2, 8))
    def test_it_is_where_scipy_finds_the_minimum(self, seed: int, scale: float) -> None:
        draws = torch.Generator().manual_seed(seed)
        logits = torch.randn(80, 5, generator=draws, dtype=torch.float64)
        labels = (logits + torch.randn(80, 5, generator=draws)).argmax(dim=1)
        logits *= scale
        smooth = torch.full((80, 5), 1 / 5) / 82
        targets = torch.nn.functional.one_hot(labels, 5) * (1 - 1 / 82) + smooth

        def likelihood(log_temperature: float) -> float:
            shares = (logits / math.exp(log_temperature)).log_softmax(dim=1)
            return float(-(targets * shares).sum())

        best = scipy.optimize.minimize_scalar(likelihood, bounds=(-4, 4), method="bounded")
        assert math.log(fit_temperature(logits, labels)) == pytest.approx(best.x, abs=1e-3)

    def test_masked_classes_are_left_out(self) -> None:
        # 7 of 8 images are right at a difference of 1: smoothed by 1/10 their share is
        # 0.9·7/8 + 0.05 = 0.8375 = σ(1/T).
        logits = torch.tensor([[1.0, MASKED, 0.0]] * 8)
        labels = torch.tensor([0] * 7 + [2])
        expected = 1 / math.log(0.8375 / 0.1625)
        assert fit_temperature(logits, labels) == pytest.approx(expected, rel=1e-4)

    def test_the_error_falls(self) -> None:
        draws = torch.Generator().manual_seed(3)
        logits = torch.randn(400, 4, generator=draws)
        labels = (logits + torch.randn(400, 4, generator=draws)).argmax(dim=1)
        temperature, errors = temperature_of(6 * logits, labels)
        assert errors is not None
        assert temperature > 3
        assert errors[1] < errors[0] / 3
        for error, divisor in zip(errors, (1, temperature), strict=True):
            sure = (6 * logits / divisor).softmax(dim=1).max(dim=1)
            are_right = (sure.indices == labels).tolist()
            assert error == pytest.approx(
                calibration_error(sure.values.tolist(), are_right), abs=1e-6
            )
        assert temperature_of(logits[:49], labels[:49]) == (1.0, None)

    def test_the_scores_are_divided_and_masked_classes_stay_masked(self) -> None:
        score = divided(lambda features: features, 4.0)
        raw = torch.tensor([[2.0, MASKED, -8.0]], dtype=torch.bfloat16)
        assert score(raw).tolist() == [[0.5, MASKED, -2.0]]


class TestScores:
    def test_energy_by_hand(self) -> None:
        scores = torch.tensor([[0.0, 0.0], [math.log(3), math.log(5)], [-math.log(4), -1e4]])
        # log(1 + 1), log(3 + 5), and of a masked class nothing is left: log(1/4).
        expected = torch.tensor([math.log(2), math.log(8), -math.log(4)])
        torch.testing.assert_close(energy(scores), expected)
        large = torch.tensor([[1000.0, 1000.0]], dtype=torch.bfloat16)
        torch.testing.assert_close(energy(large), torch.tensor([1000 + math.log(2)]))

    @pytest.mark.parametrize("num", [4, 12, 40])
    def test_distances_are_scipys(self, num: int) -> None:
        """In units of the smallest variance, of fewer and more images than features."""
        draws = torch.Generator().manual_seed(num)
        residuals = torch.randn(num, 6, generator=draws) * torch.arange(1.0, 7)
        asked, means = (torch.randn(9, 6, generator=draws) for _ in range(2))
        own = residuals.T @ residuals / num
        covariance = (1 - SHRINKAGE) * own + SHRINKAGE * own.diagonal().mean() * torch.eye(6)
        directions = torch.nn.functional.normalize(asked)
        distances = scipy.spatial.distance.cdist(
            directions, means, "mahalanobis", VI=torch.linalg.inv(covariance)
        )
        smallest = float(torch.linalg.eigvalsh(covariance)[0])
        found = mahalanobis(asked, torch.zeros(6), means, shrunk_axes(residuals))
        expected = torch.from_numpy(-smallest * distances.min(axis=1) ** 2)
        torch.testing.assert_close(found.double(), expected, rtol=2e-3, atol=1e-4)

    def test_a_sum_is_in_units_of_deviations(self) -> None:
        exemplars, held_out = clusters(5)
        score = Recogniser.fitted(exemplars, held_out)
        own = {key: score.tensors[key] for key in ("centre", "means", "axes")}
        plain = torch.nn.functional.normalize(exemplars.features)
        found = torch.nn.functional.normalize(plain - plain.reshape(5, 10, 8).mean(dim=(0, 1)))
        torch.testing.assert_close(own["means"], found.reshape(5, 10, 8).mean(dim=1))
        parts = energy(held_out.logits), mahalanobis(held_out.features, **own)
        expected = sum((part - part.mean()) / part.std() for part in parts)
        torch.testing.assert_close(score(held_out.features, held_out.logits), expected)


class TestRecogniser:
    def test_it_is_energy_where_features_cannot_be_compared(self) -> None:
        exemplars, held_out = clusters(6)
        own = exemplars.labels != 2
        some = Seen(exemplars.features[own], exemplars.logits[own], exemplars.labels[own])
        few = Seen(held_out.features[:19], held_out.logits[:19], held_out.labels[:19])
        for made in (
            Recogniser.fitted(some, held_out),
            Recogniser.fitted(exemplars, few),
            Recogniser.fitted(*clusters(2)),
            Recogniser.fitted(None, held_out),
        ):
            assert list(made.tensors) == ["familiarities"]
        assert torch.equal(made.familiarities, energy(held_out.logits).sort().values)

    @pytest.mark.parametrize("has_exemplars", [True, False])
    def test_it_is_saved_and_read(self, has_exemplars: bool) -> None:
        exemplars, held_out = clusters(5)
        made = Recogniser.fitted(exemplars if has_exemplars else None, held_out)
        tensors, seen = made.tensors, (held_out.features, held_out.logits)
        assert torch.equal(Recogniser.saved(tensors, 8)(*seen), made(*seen))
        wrong = [({**tensors, "more": made.familiarities}, 8)]
        wrong += [(tensors, 9)] * has_exemplars
        for key, tensor in tensors.items():
            wrong.append(({own: value for own, value in tensors.items() if own != key}, 8))
            wrong += [
                ({**tensors, key: other}, 8)
                for other in (
                    torch.full((2, 3), math.nan), torch.zeros(0), tensor[None], tensor.half(),
                    torch.full_like(tensor, math.nan),
                )
            ]  # fmt: skip
        if has_exemplars:
            wrong.append(({**tensors, "scales": torch.zeros(2, 2)}, 8))
        for bad, width in wrong:
            with pytest.raises(DamagedError, match="the calibration is damaged"):
                Recogniser.saved(bad, width)


class TestCutoff:
    @pytest.mark.parametrize(
        ("count", "rate", "rank"),
        # k = floor(a·(n + 1)), the k-th smallest of 1, 2, …, n; 0.05·20 is one, not less.
        [(19, 0.05, 1), (38, 0.05, 1), (39, 0.05, 2), (9, 0.5, 5), (99, 0.01, 1), (3, 0.99, 3)],
    )
    def test_by_hand(self, count: int, rate: float, rank: int) -> None:
        shuffled = ascending(count)[torch.randperm(count)]
        assert cutoff(shuffled, rate) == rank

    @given(st.floats(1e-4, 0.9999))
    def test_the_number_named_is_the_smallest_that_does(self, rate: float) -> None:
        with pytest.raises(ValueError, match="need at least") as refusal:
            cutoff(torch.empty(0), rate)
        enough = int(str(refusal.value).split("at least ")[1].split()[0])
        assert cutoff(ascending(enough), rate) == 1.0
        if enough > 1:
            with pytest.raises(ValueError, match="need at least"):
                cutoff(ascending(enough - 1), rate)

    @pytest.mark.parametrize(("count", "rate"), [(19, 0.05), (24, 0.3)])
    def test_false_alarms_keep_the_promised_rate(self, count: int, rate: float) -> None:
        """A fresh image of a learnt class falls below the cutoff with probability k/(n + 1)."""
        draws = torch.rand(2000, count + 1, generator=torch.Generator().manual_seed(0))
        lowest = torch.tensor([cutoff(own[:-1], rate) for own in draws])
        share = float((draws[:, -1] < lowest).double().mean())
        expected = math.floor(rate * (count + 1) + 1e-9) / (count + 1)
        assert expected <= rate
        assert share == pytest.approx(expected, abs=3 * math.sqrt(expected / 2000))


class TestLearner:
    def test_images_below_the_cutoff_are_unknown(self) -> None:
        # It knows two bright quadrants; ten images of each are held out.
        method = Finetune.Settings(base=recipe(20), update=recipe())
        memory = MemorySettings(size=0, validation=10)
        taught = Learner.create(settings(method, memory=memory), shape=(3, SIZE, SIZE))
        data = labelled({0: 50, 1: 50})
        taught.update(data.images, class_names(data))
        probe = labelled({0: 20, 1: 20, 6: 20}, seed=3).images
        own = taught.decision_function(probe).double().exp().sum(dim=1).log()
        # 0.1·21: the second smallest of twenty.
        lowest = float(taught.familiarities.sort().values[1])
        assert taught.unknown(probe, 0.1) == (own < lowest).tolist()
        told = taught.unknown(probe, 0.1)
        # Of dark quadrants it knows nothing; of the others a tenth may be taken for unknown.
        assert told[40:] == [True] * 20
        assert sum(told[:40]) <= 8

    def test_a_ceiling_leaves_the_room_to_exemplars(self) -> None:
        method = Replay.Settings(base=recipe(), update=recipe())
        for max_mb, parts in ((None, 5), (2, 1)):
            memory = MemorySettings(size=None if max_mb else 30, max_mb=max_mb, validation=10)
            made = Learner.create(settings(method, memory=memory), shape=(3, SIZE, SIZE))
            data = labelled({0: 50, 1: 50, 2: 50})
            made.update(data.images, class_names(data))
            assert len(made.recogniser.tensors) == parts

    def test_it_answers_at_its_temperature(self, tmp_path: Path) -> None:
        method = Replay.Settings(base=recipe(8), update=recipe(12))
        memory = MemorySettings(size=4, validation=20)
        made = Learner.create(settings(method, memory=memory), shape=(3, SIZE, SIZE))
        for counts, seed in (({0: 100, 1: 100}, 0), ({2: 200, 3: 200}, 1)):
            data = labelled(counts, seed=seed)
            made.update(data.images, class_names(data))
        last = made.history[-1]
        held = made.held_out.data()
        raw = made.scores(held.images)["linear"]
        assert temperature_of(raw, held.labels) == (last.temperature, last.calibration_error)
        assert last.temperature != 1
        found = made.decision_function(held.images)
        torch.testing.assert_close(found, raw / last.temperature)
        torch.testing.assert_close(made.predict_proba(held.images), found.softmax(dim=1))
        scores, familiar = made.recognise(held.images)
        torch.testing.assert_close(scores, found)
        torch.testing.assert_close(made.familiarities, familiar.sort().values)
        named = made.predict(held.images)
        assert named == [made.class_names[i] for i in found.argmax(dim=1).tolist()]
        made.save(tmp_path / "home")
        again = Learner.load(tmp_path / "home")
        assert torch.equal(again.decision_function(held.images), found)
