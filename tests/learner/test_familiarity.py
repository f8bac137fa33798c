"""Each score of familiarity by hand, and the choice among them."""

import math

import pytest
import scipy.spatial
import scipy.special
import scipy.stats
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import cosine_similarity
from torch import Tensor

from grace.learner.familiarity import (
    SCORES,
    SHRINKAGE,
    Reference,
    UnknownScore,
    cosine,
    directions_of,
    discriminant,
    familiarity,
    mahalanobis,
    max_logit,
    max_probability,
    nearest,
    refitted_logits,
    shrunk_axes,
)
from grace.learner.unknown import (
    TRAINED_SCORES,
    Recogniser,
    Seen,
    cutoff,
    found_share,
    left_out_ranks,
    problem_of,
    ranks,
    recogniser,
    recogniser_of,
)


def assert_close(found: Tensor, expected: object) -> None:
    wanted = torch.as_tensor(expected, dtype=found.dtype)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


class TestScores:
    def test_of_logits(self) -> None:
        logits = torch.tensor([[math.log(3), 0.0, -1e4], [2.0, 2.0, 1.0]])
        assert_close(max_logit(logits), [math.log(3), 2.0])
        # log(3 / (3 + 1)); the masked class adds nothing.
        assert_close(max_probability(logits), [math.log(0.75), -math.log(2 + math.exp(-1))])

    def test_cosine_to_the_closest_mean(self) -> None:
        means = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        assert_close(cosine(torch.tensor([[3.0, 4.0], [-5.0, 0.0]]), means), [0.8, 0.0])

    def test_nearest_exemplars(self) -> None:
        exemplars = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        # Of three exemplars all are averaged: (0.6 + 0.8 + 1) / 3.
        assert_close(nearest(torch.tensor([[6.0, 8.0]]), exemplars), [0.8])
        many = torch.cat([exemplars[2:].repeat(5, 1), -exemplars])
        assert float(nearest(torch.tensor([[6.0, 8.0]]), many)[0]) == pytest.approx(1, abs=1e-3)

    def test_mahalanobis_by_hand(self) -> None:
        centre, means = torch.zeros(2), torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        # Along the second axis the variance is four times the smallest: 1 - 1/4.
        axes = torch.tensor([[0.0, math.sqrt(0.75)]])
        # From (1, 0) to (0, 1): 1² + 1² / 4.
        assert_close(
            mahalanobis(torch.tensor([[0.0, 2.0], [9.0, 0.0]]), centre, means, axes), [-1.25, 0]
        )

    def test_the_covariance_is_shrunk_by_hand(self) -> None:
        residuals = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        # S = diag(2, 0.5), t = 1.25: 0.3·2 + 0.7·1.25 = 1.475 and 0.3·0.5 + 0.7·1.25 = 1.025.
        expected = math.sqrt(1 - 1.025 / 1.475)
        assert_close(shrunk_axes(residuals).abs(), [[expected, 0.0]])

    @pytest.mark.parametrize("num", [4, 40])
    def test_distances_are_those_of_the_inverse_covariance(self, num: int) -> None:
        draws = torch.Generator().manual_seed(num)
        residuals = torch.randn(num, 6, generator=draws) * torch.arange(1.0, 7)
        x = torch.randn(3, 6, generator=draws)
        own = residuals.T @ residuals / num
        mean = own.diagonal().mean()
        covariance = (1 - SHRINKAGE) * own + SHRINKAGE * mean * torch.eye(6)
        expected = (x @ torch.linalg.inv(covariance) * x).sum(dim=1)
        smallest = torch.linalg.eigvalsh(covariance)[0]
        found = (x**2).sum(dim=1) - ((x @ shrunk_axes(residuals).T) ** 2).sum(dim=1)
        torch.testing.assert_close(found, smallest * expected, rtol=1e-3, atol=1e-4)

    def test_the_discriminant_is_half_the_mean_less_the_smallest_distance(self) -> None:
        exemplars, _ = _clusters(6)
        reference = Reference(exemplars.features, exemplars.labels)
        asked = torch.randn(7, 8, generator=torch.Generator().manual_seed(1))
        x = directions_of(asked, reference.centre)[:, None] - reference.centred_means
        squares = (x**2).sum(dim=2) - ((x @ reference.axes.T) ** 2).sum(dim=2)
        expected = (squares.mean(dim=1) - squares.amin(dim=1)) / 2
        assert_close(discriminant(asked, **reference.tensors("discriminant")), expected)

    def test_a_sum_is_in_units_of_deviations(self) -> None:
        exemplars, held_out = _clusters(5)
        reference = Reference(exemplars.features, exemplars.labels)
        score = UnknownScore.fitted("energy+cosine", reference, held_out.features, held_out.logits)
        parts = [score.part(name, held_out.features, held_out.logits) for name in score.parts]
        expected = sum((own - own.mean()) / own.std() for own in parts)
        assert_close(score(held_out.features, held_out.logits), expected)


class TestAgainstLibraries:
    draws = torch.Generator().manual_seed(11)
    asked = torch.randn(9, 6, generator=draws)
    others = torch.randn(12, 6, generator=draws)

    def test_scores_of_logits_are_scipys(self) -> None:
        logits = 5 * self.asked.double()
        assert_close(familiarity(logits), scipy.special.logsumexp(logits, axis=1))
        largest = scipy.special.log_softmax(logits, axis=1).max(axis=1)
        assert_close(max_probability(logits), largest)

    def test_cosines_are_scikit_learns(self) -> None:
        exemplars = torch.nn.functional.normalize(self.others)
        likeness = torch.from_numpy(cosine_similarity(self.asked, self.others))
        assert_close(cosine(self.asked, exemplars), likeness.amax(dim=1))
        five = likeness.sort(dim=1, descending=True).values[:, :5]
        assert_close(nearest(self.asked, exemplars), five.mean(dim=1))

    def test_distances_are_scipys(self) -> None:
        """In units of the smallest variance; residuals of more images than features."""
        centre, means = torch.zeros(6), 0.3 * self.others[:3]
        residuals = self.others * torch.arange(1.0, 7)
        own = residuals.T @ residuals / 12
        covariance = 0.3 * own + 0.7 * own.diagonal().mean() * torch.eye(6)
        inverse = torch.linalg.inv(covariance)
        directions = torch.nn.functional.normalize(self.asked)
        distances = scipy.spatial.distance.cdist(directions, means, "mahalanobis", VI=inverse)
        smallest = float(torch.linalg.eigvalsh(covariance)[0])
        found = mahalanobis(self.asked, centre, means, shrunk_axes(residuals))
        torch.testing.assert_close(
            found.double(),
            torch.from_numpy(-smallest * distances.min(axis=1) ** 2),
            rtol=2e-3,
            atol=1e-4,
        )

    def test_refitted_logits_are_those_of_logistic_regression(self) -> None:
        labels = torch.arange(12) % 3
        centred = self.others - self.others.mean(dim=0)
        scale = centred.norm(dim=1).mean()
        rows, others = (
            torch.nn.functional.pad((own - self.others.mean(dim=0)) / scale, (0, 1), value=1.0)
            for own in (self.others, self.asked)
        )
        # Its penalty is that of all images together.
        fitted = LogisticRegression(C=1 / (12 * 0.01), fit_intercept=False, tol=1e-8, max_iter=999)
        expected = torch.from_numpy(fitted.fit(rows, labels).decision_function(others)).float()
        found = refitted_logits(self.others, labels, self.asked, decay=0.01, steps=3000)
        # Logits are free up to a number for each image.
        torch.testing.assert_close(
            found - found.mean(dim=1, keepdim=True),
            expected - expected.mean(dim=1, keepdim=True),
            rtol=1e-2,
            atol=1e-2,
        )


def test_refitted_logits_separate_what_can_be_separated() -> None:
    exemplars, held_out = _clusters(4)
    logits = refitted_logits(exemplars.features, exemplars.labels, held_out.features)
    assert logits.shape == (40, 4)
    assert torch.equal(logits.argmax(dim=1), held_out.labels)


class TestRanks:
    def test_by_hand(self) -> None:
        known = torch.tensor([4.0, 1.0, 3.0, 2.0])
        assert_close(ranks(known, torch.tensor([0.5, 2.0, 2.5, 9.0])), [0.2, 0.6, 0.6, 1.0])

    def test_they_follow_scipys_distribution_function(self) -> None:
        draws = torch.Generator().manual_seed(2)
        known, asked = torch.rand(30, generator=draws), torch.rand(8, generator=draws)
        shares = scipy.stats.ecdf(known.numpy()).cdf.evaluate(asked.numpy())
        assert_close(ranks(known, asked), (1 + 30 * shares) / 31)

    def test_cutoffs_by_hand(self) -> None:
        # Of 39 images k = 0.05 · 40 = 2, and 0.1 · 40 = 4; a rate of 0.02 allows none.
        held_out = torch.arange(39, 0, -1).float()
        assert cutoff(held_out, 0.05) == 2.0
        assert cutoff(held_out, 0.12) == 4.0
        left_out = torch.tensor([0.02, 0.05, 0.3, 0.9])
        made = Recogniser(familiarities=held_out.sort().values, left_out=left_out)
        assert made.limits() == {"0.05": 2.0, "0.1": 4.0}
        assert made.detection(0.05) == 0.5

    @pytest.mark.parametrize("rate", [0.05, 0.1, 0.3])
    def test_an_image_is_found_exactly_below_the_cutoff(self, rate: float) -> None:
        draws = torch.Generator().manual_seed(0)
        known, asked = torch.rand(57, generator=draws), torch.rand(200, generator=draws)
        expected = float((asked < cutoff(known, rate)).double().mean())
        assert found_share(ranks(known, asked), rate) == expected


def _clusters(num: int) -> tuple[Seen, Seen]:
    """Classes along the axes of eight features: ten exemplars, ten held-out images of each."""
    draws = torch.Generator().manual_seed(num)
    labels = torch.arange(num).repeat_interleave(10)

    def seen() -> Seen:
        features = 3 * torch.eye(8)[labels] + 0.2 * torch.randn(len(labels), 8, generator=draws)
        return Seen(features, features[:, :num], labels)

    return seen(), seen()


class TestChoice:
    def test_a_class_left_out_is_found(self) -> None:
        exemplars, held_out = _clusters(6)
        found = left_out_ranks(exemplars, held_out)
        assert {name: len(own) for name, own in found.items()} == dict.fromkeys(SCORES, 60)
        chosen = recogniser(exemplars, held_out)
        assert chosen.detection(0.05) == max(found_share(own, 0.05) for own in found.values()) > 0.9
        assert len(chosen.familiarities) == 60
        # What lies along an axis that no class has is unknown, an image of a class is not.
        asked = torch.stack([3 * torch.eye(8)[7], held_out.features[0]])
        familiarity = chosen.score(asked, asked[:, :6])
        lowest = cutoff(chosen.familiarities, 0.05)
        assert (familiarity < lowest).tolist() == [True, False]

    def test_without_exemplars_it_is_energy(self) -> None:
        exemplars, held_out = _clusters(6)
        some = exemplars.subset(exemplars.labels != 2)
        for own in (None, some):
            chosen = recogniser(own, held_out)
            assert (chosen.score.name, chosen.detection(0.05)) == ("energy", None)

    def test_what_does_not_fit_is_not_chosen(self) -> None:
        exemplars, held_out = _clusters(6)
        assert not recogniser(exemplars, held_out, most_bytes=0).score.tensors

    def test_the_scores_to_choose_from_can_be_limited(self) -> None:
        exemplars, held_out = _clusters(6)
        few = recogniser(exemplars, held_out, names=TRAINED_SCORES)
        assert few.score.name == "energy+mahalanobis"
        none_fits = recogniser(exemplars, held_out, most_bytes=0, names=TRAINED_SCORES)
        assert none_fits.score.name == "energy"

    @pytest.mark.parametrize("name", SCORES)
    def test_every_score_is_saved_and_read(self, name: str) -> None:
        exemplars, held_out = _clusters(5)
        reference = Reference(exemplars.features, exemplars.labels)
        score = UnknownScore.fitted(name, reference, held_out.features, held_out.logits)
        own = score(held_out.features, held_out.logits).sort().values
        tensors = Recogniser(score, own, torch.rand(50)).tensors
        assert problem_of(name, tensors, 8) is None
        back = recogniser_of(name, tensors)
        assert torch.equal(back.score(held_out.features, held_out.logits).sort().values, own)
        assert problem_of(name, {"familiarities": own}, 8) is None or score.tensors
        for key in score.tensors:
            kept = {k: v for k, v in tensors.items() if k != f"score.{key}"}
            bad = {**tensors, f"score.{key}": torch.full((2, 3), math.nan)}
            assert problem_of(name, kept, 8) is not None
            assert problem_of(name, bad, 8) is not None
        assert not score.tensors or problem_of(name, tensors, 9) is not None
        assert problem_of(name, {**tensors, "more": own}, 8) is not None
        assert problem_of(name, {**tensors, "familiarities": own[None]}, 8) is not None
