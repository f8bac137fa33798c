import math

import pytest
import torch

from grace.nn.losses.classification import (
    auxiliary_labels,
    cross_entropy,
    new_class_cross_entropy,
    shared_target,
)
from grace.nn.losses.distillation import distillation_share, logit_distillation
from support.typed import present


def test_with_a_prior_smoothed_logits_prefer_no_other_class() -> None:
    # Class 0 has 6 of 8 images: p = π·σ(z) is (3/5, 2/5) at z = (0, ln 2); ε·π = (0.15, 0.05).
    prior = torch.tensor([0.75, 0.25]).log()
    shared = shared_target(0.2, torch.tensor([True, True]), prior)
    assert shared.tolist() == pytest.approx([0.15, 0.05])
    loss = cross_entropy(torch.tensor([[0.0, math.log(2)]]), torch.tensor([1]), prior, shared)
    assert float(loss) == pytest.approx(-0.15 * math.log(0.6) - 0.85 * math.log(0.4), abs=1e-6)
    # The best logits of images of class 2: equal for the classes 0 and 1, of 6 and 1 images.
    prior = torch.tensor([0.6, 0.1, 0.3]).log()
    logits = torch.zeros(1, 3, requires_grad=True)
    shared = shared_target(0.2, torch.ones(3, dtype=torch.bool), prior)
    best = (shared + torch.tensor([0.0, 0.0, 0.8])).log() - prior
    assert float(best[0]) == pytest.approx(float(best[1])) == pytest.approx(math.log(0.2))
    (slope,) = torch.autograd.grad(
        cross_entropy(logits + best, torch.tensor([2]), prior, shared), logits
    )
    assert slope.tolist() == [pytest.approx([0, 0, 0], abs=1e-6)]


def test_forgotten_classes_get_no_part_of_a_label() -> None:
    is_live = torch.tensor([False, True, True])
    assert shared_target(0.2, is_live).tolist() == pytest.approx([0, 0.1, 0.1])
    prior = torch.tensor([0.2, 0.6, 0.2]).log()
    assert shared_target(0.2, is_live, prior).tolist() == pytest.approx([0, 0.15, 0.05])


def test_new_class_cross_entropy_leaves_old_images_out() -> None:
    logits = torch.tensor([[0.0, math.log(3), 0.0], [7.0, 1.0, 2.0]])
    loss = new_class_cross_entropy(logits, torch.tensor([1, 0]), num_old=1)
    assert float(loss) == pytest.approx(-math.log(0.75), abs=1e-6)
    assert float(new_class_cross_entropy(logits, torch.tensor([0, 0]), num_old=1)) == 0.0


def test_old_logits_get_a_gradient_of_exactly_zero() -> None:
    # methods/finetune.py: zero, not absent, so that weight decay still reaches the old rows.
    logits = torch.zeros(1, 3, requires_grad=True)
    new_class_cross_entropy(logits, torch.tensor([2]), num_old=1).backward()
    assert present(logits.grad).tolist() == [[0.0, 0.5, -0.5]]


def test_auxiliary_labels() -> None:
    # methods/der.py with K_old = 4: any old class → 0, class 4 → 1, class 6 → 3.
    assert auxiliary_labels(torch.tensor([0, 3, 4, 6]), 4).tolist() == [0, 0, 1, 3]


@pytest.mark.parametrize(("old", "all_classes", "share"), [(10, 20, 0.5), (50, 60, 5 / 6)])
def test_share_of_distillation(old: int, all_classes: int, share: float) -> None:
    assert distillation_share(old, all_classes) == pytest.approx(share)


def test_logit_distillation_is_never_negative_in_bfloat16() -> None:
    # Near the optimum bfloat16 terms cancel to −4e-4; the divergence itself is at least 0.
    teacher = torch.randn(64, 20, generator=torch.Generator().manual_seed(0)).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = logit_distillation(teacher * 1.01, teacher, 2.0)
    assert value.dtype == torch.float32
    assert float(value) >= 0
