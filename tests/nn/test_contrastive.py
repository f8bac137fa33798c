import math

import pytest
import torch

from grace.nn.losses.distillation import info_nce
from support.typed import present


def test_the_other_view_is_the_positive_and_the_same_row_is_left_out() -> None:
    anchors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    candidates = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, -1.0]])
    # Row 0: partner 1 has cosine 0, rows 2 and 3 have −1 and 0: ln(1 + e⁻¹ + 1). Row 1: partner 0
    # has 0, rows 2 and 3 have 0 and −1: the same. Rows 2 and 3: partners 0, rows 0 and 1 have 1
    # and 0: ln(1 + e + 1).
    expected = (math.log(2 + math.exp(-1)) + math.log(2 + math.e)) / 2
    assert float(info_nce(anchors, candidates, 1.0)) == pytest.approx(expected, abs=1e-6)


def test_it_is_computed_in_float32_under_autocast() -> None:
    draws = torch.Generator().manual_seed(1)
    views = torch.randn(16, 8, generator=draws)
    with torch.autocast("cpu", torch.bfloat16):
        found = info_nce(views.bfloat16(), views.bfloat16(), 0.2)
    assert found.dtype == torch.float32
    exact = info_nce(views.bfloat16().float(), views.bfloat16().float(), 0.2)
    assert float(found) == pytest.approx(float(exact), abs=1e-5)


def test_views_are_drawn_together_and_gradients_are_finite() -> None:
    views = torch.tensor([[1.0, 0.1], [1.0, -0.1], [0.0, 0.0], [0.1, 1.0]], requires_grad=True)
    info_nce(views, views, 0.2).backward()
    # An embedding that vanished has a direction still: no NaN.
    assert bool(present(views.grad).isfinite().all())
    stepped = views.detach() - 0.01 * present(views.grad)
    stepped[2] = 0
    assert float(info_nce(stepped, stepped, 0.2)) < float(
        info_nce(views.detach(), views.detach(), 0.2)
    )


def test_of_one_image_there_is_nothing_to_tell_the_other_view_from() -> None:
    views = torch.randn(2, 3, generator=torch.Generator().manual_seed(1))
    assert float(info_nce(views, views, 0.2)) == 0.0
