import math

import pytest
import torch

from grace.nn.losses.distillation import guided_transfer
from support.typed import present

LOGITS = torch.zeros(2, 3)
# At T = 2: σ((2·ln 3, 0)/2) = (3/4, 1/4); at T = 1: (9/10, 1/10).
GUIDE = torch.tensor([[2 * math.log(3), 0.0], [2 * math.log(3), 0.0]])
# KL((3/4, 1/4) ‖ (1/2, 1/2)) = ¾·ln(3/2) + ¼·ln(1/2) = 0.130812.
DIVERGENCE = 0.130812


def test_images_of_old_classes_are_left_out_of_the_mean() -> None:
    # The old one's new logits differ: they would count otherwise.
    logits = torch.tensor([[0.0, 0.0, 0.0], [0.0, 5.0, -5.0]])
    found = guided_transfer(logits, GUIDE, torch.tensor([1, 0]), 1, 2.0)
    assert float(found) == pytest.approx(DIVERGENCE, abs=1e-6)


def test_a_guide_that_is_no_better_gives_nothing() -> None:
    # For label 2 the guide's CE is −ln(1/10) = 2.30, that of z ln 3 = 1.10.
    assert float(guided_transfer(LOGITS[:1], GUIDE[:1], torch.tensor([2]), 1, 2.0)) == 0.0


def test_the_gate_compares_the_guide_on_new_images_with_all_logits_on_all_images() -> None:
    # The guide is wrong on the new image, CE 2.30. z has ln 3 there, and on the old one, 0, it
    # is −ln σ(−7)_0 = ln(1 + 2·e⁷) = 7.69: the mean, 4.40, is above the guide's.
    logits = torch.tensor([[0.0, 0.0, 0.0], [-7.0, 0.0, 0.0]])
    labels = torch.tensor([2, 0])
    assert float(guided_transfer(logits, GUIDE, labels, 1, 2.0)) == pytest.approx(
        DIVERGENCE, abs=1e-6
    )
    # On −3 it is ln(1 + 2·e³) = 3.72, mean 2.41; on −2 it is 2.76, mean 1.93, below 2.30.
    for value, expected in ((-3.0, DIVERGENCE), (-2.0, 0.0)):
        logits[1, 0] = value
        found = guided_transfer(logits, GUIDE, labels, 1, 2.0)
        assert float(found) == pytest.approx(expected, abs=1e-6)


def test_without_an_image_of_a_new_class_it_is_zero() -> None:
    logits = LOGITS.clone().requires_grad_()
    found = guided_transfer(logits, GUIDE, torch.tensor([0, 0]), 1, 2.0)
    assert float(found.detach()) == 0.0
    found.backward()
    assert torch.equal(present(logits.grad), torch.zeros(2, 3))


def test_the_guide_gets_no_gradient_and_old_logits_none() -> None:
    logits, guide = LOGITS.clone().requires_grad_(), GUIDE.clone().requires_grad_()
    guided_transfer(logits, guide, torch.tensor([1, 1]), 1, 2.0).backward()
    assert guide.grad is None
    # ∂KL/∂z_c = (σ(z/T)_c − σ(g/T)_c) / T = (½ − ¾)/2 for the first, halved by the mean of two.
    expected = torch.tensor([0.0, -1 / 16, 1 / 16]).expand(2, 3)
    torch.testing.assert_close(present(logits.grad), expected)
