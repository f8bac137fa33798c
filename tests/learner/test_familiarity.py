"""Each score of familiarity by hand, and the choice among them."""

import math

import pytest
import torch
from torch import Tensor

from grace.learner.familiarity import (
    SCORES,
    SHRINKAGE,
    Reference,
    UnknownScore,
    cosine,
    directions_of,
    discriminant,
    mahalanobis,
    max_logit,
    max_probability,
    nearest,
    refitted_logits,
    shrunk_axes,
)
from grace.learner.unknown import (
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


def close(found: Tensor, expected: object) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected), rtol=1e-5, atol=1e-5)


class TestScores:
    def test_of_logits(self) -> None:
        logits = torch.tensor([[math.log(3), 0.0, -1e4], [2.0, 2.0, 1.0]])
        close(max_logit(logits), [math.log(3), 2.0])
        # log(3 / (3 + 1)); the masked class adds nothing.
        close(max_probability(logits), [math.log(0.75), -math.log(2 + math.exp(-1))])

    def test_cosine_to_the_closest_mean(self) -> None:
        means = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        close(cosine(torch.tensor([[3.0, 4.0], [-5.0, 0.0]]), means), [0.8, 0.0])

    def test_nearest_exemplars(self) -> None:
        exemplars = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
        # Of three exemplars all are averaged: (0.6 + 0.8 + 1) / 3.
        close(nearest(torch.tensor([[6.0, 8.0]]), exemplars), [0.8])
        many = torch.cat([exemplars[2:].repeat(5, 1), -exemplars])
        assert float(nearest(torch.tensor([[6.0, 8.0]]), many)[0]) == pytest.approx(1, abs=1e-3)

    def test_mahalanobis_by_hand(self) -> None:
        centre, means = torch.zeros(2), torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
        # Along the second axis the variance is four times the smallest: 1 - 1/4.
        axes = torch.tensor([[0.0, math.sqrt(0.75)]])
        # From (1, 0) to (0, 1): 1² + 1² / 4.
        close(mahalanobis(torch.tensor([[0.0, 2.0], [9.0, 0.0]]), centre, means, axes), [-1.25, 0])

    def test_the_covariance_is_shrunk_by_hand(self) -> None:
        residuals = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        # S = diag(2, 0.5), t = 1.25: 0.3·2 + 0.7·1.25 = 1.475 and 0.3·0.5 + 0.7·1.25 = 1.025.
        expected = math.sqrt(1 - 1.025 / 1.475)
        close(shrunk_axes(residuals).abs(), [[expected, 0.0]])

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
        close(discriminant(asked, **reference.tensors("discriminant")), expected)

    def test_a_sum_is_in_units_of_deviations(self) -> None:
        exemplars, held_out = _clusters(5)
        reference = Reference(exemplars.features, exemplars.labels)
        score = UnknownScore.fitted("energy+cosine", reference, held_out.features, held_out.logits)
        parts = [score.part(name, held_out.features, held_out.logits) for name in score.parts]
        expected = sum((own - own.mean()) / own.std() for own in parts)
        close(score(held_out.features, held_out.logits), expected)


def test_refitted_logits_separate_what_can_be_separated() -> None:
    exemplars, held_out = _clusters(4)
    logits = refitted_logits(exemplars.features, exemplars.labels, held_out.features)
    assert logits.shape == (40, 4)
    assert torch.equal(logits.argmax(dim=1), held_out.labels)


class TestRanks:
    def test_by_hand(self) -> None:
        known = torch.tensor([4.0, 1.0, 3.0, 2.0])
        close(ranks(known, torch.tensor([0.5, 2.0, 2.5, 9.0])), [0.2, 0.6, 0.6, 1.0])

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
