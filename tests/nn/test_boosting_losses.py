"""FOSTER's losses and class weights on numbers worked by hand."""

import math

import pytest
import torch

from grace.nn.losses.balance import effective_number_weights
from grace.nn.losses.distillation import balanced_distillation


def test_effective_number_weights_of_the_spec() -> None:
    # docs/methods/foster.md: β = 0.96, 50 old classes of 40 images, 10 new ones of 500.
    # 0.96^40 = 0.195366, 0.96^500 ≈ 1.4e-9: 1/0.804634 = 1.242800 and 1; normalised by
    # 60 / (50·1.242800 + 10) = 0.831764.
    counts = torch.tensor([40] * 50 + [500] * 10)
    weights = effective_number_weights(counts, 0.96)
    assert weights[:50].tolist() == pytest.approx([1.0337] * 50, abs=5e-5)
    assert weights[50:].tolist() == pytest.approx([0.8317] * 10, abs=1e-4)
    assert float(weights.sum()) == pytest.approx(60, abs=1e-4)


def test_effective_number_weights_at_both_ends() -> None:
    counts = torch.tensor([1, 4])
    assert effective_number_weights(counts, 0.0).tolist() == [1.0, 1.0]
    # Inverse counts 1 : ¼, normalised to sum to 2.
    near_one = effective_number_weights(counts, 1 - 1e-9)
    assert near_one.tolist() == pytest.approx([1.6, 0.4], abs=1e-5)


def test_a_class_without_images_weighs_like_one_image() -> None:
    weights = effective_number_weights(torch.tensor([0, 1]), 0.9)
    assert weights.tolist() == [1.0, 1.0]


def test_balanced_distillation_leaves_a_forgotten_class_alone() -> None:
    # Its logits are −10⁴ on both sides: what is left is the two-class case above.
    teacher = torch.tensor([[-1e4, 2 * math.log(3), 0.0]])
    student = torch.tensor([[-1e4, 2 * math.log(4), 0.0]], requires_grad=True)
    loss = balanced_distillation(student, teacher, torch.tensor([1.0, 0.5, 1.5]), 2.0)
    assert float(loss.detach()) == pytest.approx(-0.5 * (math.log(0.8) + math.log(0.2)), abs=1e-6)
    (gradient,) = torch.autograd.grad(loss, student)
    # (σ(z_S/T) − q) / T.
    assert gradient[0].tolist() == pytest.approx([0.0, 0.15, -0.15], abs=1e-6)
