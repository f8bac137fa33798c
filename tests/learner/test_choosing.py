"""The predictor is chosen by a paired test, and its temperature minimises the likelihood."""

import math
from pathlib import Path

import pytest
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor

from grace.engine.phase import Phase, Sweep
from grace.learner.choosing import (
    calibrated,
    candidates,
    choose,
    classifier_of,
    fit_temperature,
)
from grace.learner.document import Predictor
from grace.learner.gate import calibration_error
from grace.learner.learner import Learner
from grace.methods.der import DER
from grace.methods.foster import Foster
from grace.methods.replay import Replay
from grace.nn.heads import MASKED
from grace.settings.experiment import MemorySettings
from support.tiny_streams import SIZE, class_names, labelled, recipe, settings, watch

pytestmark = pytest.mark.usefixtures("tiny_backbones")

LINEAR, MEANS = Predictor(classifier="linear"), Predictor(classifier="nearest_mean")


def said(right: int, num: int = 60) -> Tensor:
    """Scores (N, 2) of images of class 0, of which the first ones are right."""
    first = torch.arange(num) < right
    return torch.stack([first.float(), (~first).float()], dim=1)


class TestChoice:
    labels = torch.zeros(60, dtype=torch.int64)

    @pytest.mark.parametrize(
        ("means", "chosen"),
        # 5 more of 60 are right and no fewer: 2^-5 = 0.031. Four show nothing.
        [(45, MEANS), (44, LINEAR), (40, LINEAR), (30, LINEAR)],
    )
    def test_the_better_one_if_that_is_shown(self, means: int, chosen: Predictor) -> None:
        scores = {LINEAR: said(40), MEANS: said(means)}
        assert choose(Predictor(), scores, self.labels) == chosen

    def test_it_stays_until_the_other_is_shown_to_be_better(self) -> None:
        for linear, expected in ((44, MEANS), (45, LINEAR)):
            assert choose(MEANS, {LINEAR: said(linear), MEANS: said(40)}, self.labels) == expected

    def test_two_others_share_the_level(self) -> None:
        prior = Predictor(classifier="linear", prior=(3, 4))
        scores = {LINEAR: said(40), MEANS: said(45), prior: said(38)}
        # 0.031 is more than 0.05/2.
        assert choose(Predictor(), scores, self.labels) == LINEAR
        # A prior of another update is the same kind of predictor.
        earlier = Predictor(classifier="linear", prior=(9, 9), temperature=2.0)
        assert choose(earlier, {LINEAR: said(40), prior: said(38)}, self.labels) == prior

    def test_one_that_is_gone_gives_way_to_the_primary(self) -> None:
        gone = Predictor(classifier="teacher")
        assert choose(gone, {LINEAR: said(40), MEANS: said(41)}, self.labels) == LINEAR

    def test_few_images_choose_nothing(self) -> None:
        scores = {LINEAR: said(0, 49), MEANS: said(49, 49)}
        assert choose(LINEAR, scores, self.labels[:49]) == LINEAR


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

    def test_two_classes_by_hand(self) -> None:
        # 7 of 8 images are right at a difference of 1: smoothed by 1/10 their share is
        # 0.9·7/8 + 0.05 = 0.8375 = σ(1/T).
        logits = torch.tensor([[1.0, 0.0]] * 8)
        labels = torch.tensor([0] * 7 + [1])
        expected = 1 / math.log(0.8375 / 0.1625)
        assert fit_temperature(logits, labels) == pytest.approx(expected, rel=1e-4)

    def test_masked_classes_are_left_out(self) -> None:
        logits = torch.tensor([[1.0, MASKED, 0.0]] * 8)
        labels = torch.tensor([0] * 7 + [2])
        expected = 1 / math.log(0.8375 / 0.1625)
        assert fit_temperature(logits, labels) == pytest.approx(expected, rel=1e-4)

    def test_all_right_or_all_alike_is_no_trouble(self) -> None:
        right = fit_temperature(said(60), torch.zeros(60, dtype=torch.int64))
        assert 0.1 < right < 1
        assert 0.01 <= fit_temperature(torch.zeros(60, 3), torch.zeros(60).long()) <= 100

    def test_the_error_falls(self) -> None:
        draws = torch.Generator().manual_seed(3)
        logits = torch.randn(400, 4, generator=draws)
        labels = (logits + torch.randn(400, 4, generator=draws)).argmax(dim=1)
        found = calibrated(LINEAR, 6 * logits, labels)
        assert found.calibration_error is not None
        before, after = found.calibration_error
        assert after < before / 3
        assert found.temperature > 3
        shares = [(6 * logits / t).softmax(dim=1).max(dim=1) for t in (1, found.temperature)]
        errors = [
            calibration_error(own.values.tolist(), (own.indices == labels).tolist())
            for own in shares
        ]
        assert before == pytest.approx(errors[0], abs=1e-6)
        assert after == pytest.approx(errors[1], abs=1e-6)
        assert calibrated(LINEAR, logits[:49], labels[:49]) == LINEAR


def teach(made: Learner, counts: dict[int, int], seed: int = 0) -> None:
    data = labelled(counts, seed=seed)
    made.update(data.images, class_names(data))


def create(method: object, **memory: int) -> Learner:
    kept = MemorySettings(**{"size": 20, "validation": 15} | memory)
    return Learner.create(settings(method, memory=kept), shape=(3, SIZE, SIZE))


class TestCandidates:
    def test_the_prior_is_that_of_the_last_phase(self) -> None:
        made = create(Replay.Settings(base=recipe(), update=recipe()), validation=2)
        counts: list[list[int]] = []

        def note(item: Phase | Sweep) -> None:
            if isinstance(item, Phase):
                counts.append(torch.bincount(item.data.labels).tolist())

        watch(made, note)
        teach(made, {0: 12, 1: 12})
        assert [own.words for own in candidates(made.method, counts[-1])] == [
            "linear",
            "nearest mean",
        ]
        teach(made, {2: 12})
        assert counts[-1] == [10, 10, 10]
        teach(made, {3: 32})
        assert counts[-1] == [6, 6, 6, 30]
        listed = candidates(made.method, counts[-1])
        assert [own.words for own in listed] == ["linear", "nearest mean", "linear with prior"]
        # By hand: z − log π.
        raw, changed = (classifier_of(made.method, own).score for own in (listed[0], listed[2]))
        features = torch.rand(5, made.method.network.feature_dim)
        prior = torch.tensor([6 / 48, 6 / 48, 6 / 48, 30 / 48]).log()
        torch.testing.assert_close(changed(features), raw(features) - prior)

    def test_a_class_prior_in_training_needs_no_correction(self) -> None:
        method = Replay.Settings(base=recipe(), update=recipe(), class_prior="balanced")
        made = create(method, validation=2)
        teach(made, {0: 12, 1: 12})
        assert [own.words for own in candidates(made.method, [6, 30])] == ["linear", "nearest mean"]

    def test_predictors_with_other_backbones_are_no_candidates(self) -> None:
        made = create(Foster.Settings(base=recipe(), boost=recipe(), compress=recipe()))
        for counts in ({0: 8, 1: 8}, {2: 8}):
            teach(made, counts)
        assert "teacher" in made.method.classifiers()
        assert "teacher" not in [own.classifier for own in candidates(made.method, [1, 1, 1])]

    def test_masked_classes_stay_masked(self) -> None:
        made = create(DER.Settings(base=recipe(), grow=recipe()), validation=2)
        teach(made, {0: 12, 1: 12, 2: 12})
        made.forget("class 1")
        own = Predictor(classifier="linear", prior=(5, 7, 9), temperature=3.0)
        scores = classifier_of(made.method, own).score(torch.rand(4, 64))
        assert scores[:, 1].tolist() == [MASKED] * 4
        assert scores[:, [0, 2]].abs().max() < 100


class TestALearner:
    def test_it_answers_with_what_it_chose(self, tmp_path: Path) -> None:
        made = create(Replay.Settings(base=recipe(8), update=recipe(12)), size=4, validation=20)
        teach(made, {0: 100, 1: 100})
        teach(made, {2: 200, 3: 200}, seed=1)
        chosen = made.predictor
        assert made.history[-1].predictor == chosen
        assert chosen.calibration_error is not None
        data = made.held_out.data()
        found = made.decision_function(data.images)
        # What is told is what is answered.
        accuracy = made.history[-1].accuracy
        right = (found.argmax(dim=1) == data.labels).double()
        shares = [float(right[data.labels < 2].mean()), float(right[data.labels >= 2].mean())]
        assert [accuracy.old_after, accuracy.new_after] == pytest.approx(shares)
        for own in accuracy.classes:
            assert own.after == int(right[data.labels == own.index].sum())
        torch.testing.assert_close(made.predict_proba(data.images), found.softmax(dim=1))
        scores, familiar = made.recognise(data.images)
        torch.testing.assert_close(scores, found)
        torch.testing.assert_close(made.familiarities, familiar.sort().values)
        named = made.predict(data.images)
        assert named == [made.class_names[i] for i in found.argmax(dim=1).tolist()]
        made.save(tmp_path / "home")
        again = Learner.load(tmp_path / "home")
        assert again.predictor == chosen
        assert torch.equal(again.decision_function(data.images), found)
