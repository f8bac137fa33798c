"""CREATE's losses on numbers worked by hand, and by plain loops over classes, images and pairs."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from grace.base.randomness import generator
from grace.nn.losses.confusion import (
    confusion_aware_contrast,
    confusion_weights,
    floored_cross_entropy,
)


class TestFlooredCrossEntropy:
    def test_no_image_costs_more_than_the_floor(self) -> None:
        # e^−200 is 0 in float32, so that p is 1e-10 and the loss 10·ln 10, without a gradient.
        scores = torch.tensor([[0.0, -200.0]], requires_grad=True)
        loss = floored_cross_entropy(scores, torch.tensor([1]))
        assert float(loss.detach()) == pytest.approx(10 * math.log(10), abs=1e-5)
        (gradient,) = torch.autograd.grad(loss, scores)
        assert gradient.tolist() == [[0.0, 0.0]]

    def test_half_precision_keeps_the_floor(self) -> None:
        scores = torch.tensor([[0.0, -200.0]], dtype=torch.float16)
        loss = floored_cross_entropy(scores, torch.tensor([1]))
        assert float(loss) == pytest.approx(10 * math.log(10), abs=1e-5)


class TestConfusionWeights:
    def test_two_classes_are_never_confused(self) -> None:
        # The second largest is the smallest, so s = 1.
        weights = confusion_weights(torch.tensor([[-1.0, -1.5]]), 2.0)
        assert weights.tolist() == pytest.approx([1 + math.exp(-2)])

    @pytest.mark.parametrize("scores", [[[-3.0, -3.0, -3.0]], [[-3.0]]])
    def test_without_any_gap_the_weight_is_two(self, scores: list[list[float]]) -> None:
        assert confusion_weights(torch.tensor(scores), 4.0).tolist() == [2.0]

    def test_it_has_no_gradient(self) -> None:
        scores = torch.tensor([[-1.0, -2.0, -4.0]], requires_grad=True)
        assert not confusion_weights(scores, 4.0).requires_grad


def by_loops(
    latents: Tensor,
    labels: Sequence[int],
    weights: Sequence[float],
    num_classes: int,
    temperature: float,
    base_temperature: float,
) -> float:
    """The formula as it stands: for each class, image and pair, in plain Python numbers."""
    count = len(labels)
    total = 0.0
    for c in range(latents.shape[1]):
        h = latents[:, c].double().tolist()
        for n in range(count):
            if labels[n] != c:
                continue
            dots = [sum(a * b for a, b in zip(h[n], h[j], strict=True)) for j in range(count)]
            scaled = [dot / temperature for dot in dots]
            kept = [max(value - max(scaled), -95.0) for value in scaled]
            below = sum(math.exp(kept[j]) for j in range(count) if j != n)
            others = [m for m in range(count) if m != n and labels[m] == c]
            if others:
                mean = sum(math.log(math.exp(kept[m]) / below) for m in others) / len(others)
                total += temperature / base_temperature * weights[n] * -mean / count
    return total / num_classes


class TestContrast:
    def test_by_hand(self) -> None:
        # One latent each. In the auto-encoder of class 0 they are 0.2, 0.1 and −0.1, so with
        # τ = 0.1 image 0 has similarities 0.2 (image 1) and −0.2 (image 2), image 1 has 0.2 and
        # −0.1. Image 2 is alone in its class. τ/τ_b = 2, K = 2, three images, ω = (1, 2, 1).
        latents = torch.tensor([[0.2, 0.3], [0.1, 0.3], [-0.1, 0.2]]).unsqueeze(2)
        labels, weights = torch.tensor([0, 0, 1]), torch.tensor([1.0, 2.0, 1.0])
        first = math.log(math.exp(0.2) + math.exp(-0.2)) - 0.2
        second = math.log(math.exp(0.2) + math.exp(-0.1)) - 0.2
        loss = confusion_aware_contrast(latents, labels, weights, 2, 0.1, 0.05)
        assert float(loss) == pytest.approx(2 * (first + 2 * second) / 3 / 2, abs=1e-6)

    @pytest.mark.parametrize("seed", [1, 2])
    @pytest.mark.parametrize("reach", [0.5, 4.0])
    def test_one_product_gives_what_loops_give(self, seed: int, reach: float) -> None:
        draws = generator(seed, "contrast")
        latents = reach * (2 * torch.rand(9, 4, 3, generator=draws) - 1)
        labels = torch.tensor([0, 2, 2, 0, 1, 2, 0, 2, 3])
        weights = 1 + torch.rand(9, generator=draws)
        # Five classes counted: one of them has no auto-encoder here, as a forgotten one may lack.
        expected = by_loops(latents, labels.tolist(), weights.tolist(), 5, 0.1, 0.07)
        loss = confusion_aware_contrast(latents, labels, weights, 5, 0.1, 0.07)
        assert float(loss) == pytest.approx(expected, rel=1e-5)
        assert expected > 0.01

    def test_other_auto_encoders_of_an_image_do_not_matter(self) -> None:
        """Of class 1 no image is here: its auto-encoder learns nothing."""
        latents = torch.rand(4, 3, 2, generator=generator(1), requires_grad=True)
        loss = confusion_aware_contrast(
            latents, torch.tensor([0, 0, 2, 2]), torch.ones(4), 3, 0.1, 0.07
        )
        (gradient,) = torch.autograd.grad(loss, latents)
        assert not gradient[:, 1].any()
        # Those of classes that are here learn from every image of the batch.
        assert bool(gradient[:, [0, 2]].any(dim=2).all())

    def test_alone_or_all_alone_there_is_no_term_and_no_bad_gradient(self) -> None:
        for count in (1, 3):
            latents = torch.rand(count, 3, 2, generator=generator(1), requires_grad=True)
            loss = confusion_aware_contrast(
                latents, torch.arange(count), torch.ones(count), 3, 0.1, 0.07
            )
            (gradient,) = torch.autograd.grad(loss, latents)
            assert float(loss.detach()) == 0.0
            assert gradient.tolist() == torch.zeros(count, 3, 2).tolist()

    def test_it_is_computed_in_float32_whatever_the_precision(self) -> None:
        latents = 2 * torch.rand(6, 2, 8, generator=generator(1)) - 1
        labels = torch.tensor([0, 1, 0, 1, 0, 0])
        given = (labels, torch.ones(6), 2, 0.1, 0.07)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = confusion_aware_contrast(latents, *given)
        assert inside.dtype == torch.float32
        assert torch.equal(inside, confusion_aware_contrast(latents, *given))
        # Latents at their ends: exponents up to 32/0.1 = 320 beside −320.
        extreme = torch.ones(4, 1, 32, dtype=torch.float16)
        extreme[2:] *= -1
        loss = confusion_aware_contrast(
            extreme, torch.zeros(4, dtype=torch.int64), torch.ones(4), 1, 0.1, 0.1
        )
        # Each image: one positive at 0, two at −95: mean (0 + 95 + 95)/3 of −log.
        assert float(loss) == pytest.approx(190 / 3, rel=1e-6)
