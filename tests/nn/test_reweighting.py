import math

import pytest
import torch

from grace.nn.losses.balance import (
    accumulated_norms,
    class_gradient_weights,
    distillation_factor,
    weighted_rows,
)

NONE = torch.tensor([], dtype=torch.int64)


def indices(*places: int) -> torch.Tensor:
    return torch.tensor(places, dtype=torch.int64)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_step_that_is_skipped_leaves_no_trace(bad: float) -> None:
    before = torch.tensor([1.0, 2.0])
    found = accumulated_norms(before, torch.tensor([[3.0, 4.0], [bad, 0.0]]))
    assert found.tolist() == [1.0, 2.0]


def test_weights_where_old_classes_got_more() -> None:
    # ρ = 2/3: old (1, ½)·2/3; new (1, 1/3)·min(1, 2/3·½).
    found = class_gradient_weights(
        torch.tensor([2.0, 4.0, 1.0, 3.0]), indices(0, 1), indices(2, 3), 0.5
    )
    assert found.tolist() == pytest.approx([2 / 3, 1 / 3, 1 / 3, 1 / 9])


@pytest.mark.parametrize(("discount", "factor"), [(0.1, 0.6), (0.5, 1.0)])
def test_weights_where_new_classes_got_more(discount: float, factor: float) -> None:
    # ρ = 6: old ones keep α; new (1, ½)·min(1, 6·γ).
    found = class_gradient_weights(
        torch.tensor([1.0, 1.0, 4.0, 8.0]), indices(0, 1), indices(2, 3), discount
    )
    assert found.tolist() == pytest.approx([1.0, 1.0, factor, factor / 2])


def test_a_forgotten_class_has_no_part_in_it() -> None:
    # Class 1 was forgotten: its Φ stays 0, and is neither the least nor in a mean.
    found = class_gradient_weights(
        torch.tensor([2.0, 0.0, 4.0, 1.5]), indices(0, 2), indices(3), 0.5
    )
    assert found.tolist() == pytest.approx([0.5, 0.0, 0.25, 0.25])


def test_classes_that_got_nothing_yet() -> None:
    old, new = indices(0, 1), indices(2)
    assert class_gradient_weights(torch.zeros(3), old, new, 0.5).tolist() == [1.0, 1.0, 0.5]
    found = class_gradient_weights(torch.tensor([0.0, 3.0, 3.0]), old, new, 0.5)
    assert found.tolist() == pytest.approx([1.0, 0.0, 1.0], abs=1e-6)


def test_weighted_rows_of_weights_and_biases() -> None:
    weights = torch.tensor([0.5, 2.0])
    rows = weighted_rows(weights, torch.tensor([[2.0, 4.0, 6.0], [1.0, 1.0, 1.0]]))
    assert rows.tolist() == [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]]
    assert weighted_rows(weights, torch.tensor([4.0, 5.0])).tolist() == [2.0, 10.0]


def test_nothing_to_distil_gives_a_finite_factor() -> None:
    factor = distillation_factor(torch.ones(2, 2), torch.zeros(2, 2))
    assert (factor * torch.zeros(2, 2)).tolist() == [[0.0, 0.0], [0.0, 0.0]]
