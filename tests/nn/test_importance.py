"""EWC's penalty and its merging of importances, by hand from methods/ewc.py."""

import pytest
import torch

from grace.nn.losses.importance import merged_importance, quadratic_penalty
from support.typed import present


def test_the_penalty_by_hand() -> None:
    # ½·(2·(3 − 1)² + 4·(0 − 1)² + 6·(5 − 3)²) = ½·(8 + 4 + 24); the second row of the head is new.
    parameters = {
        "backbone.0.w": torch.tensor([3.0, 0.0]),
        "head.0.weight": torch.tensor([[5.0], [7.0]], requires_grad=True),
    }
    anchor = {"backbone.0.w": torch.tensor([1.0, 1.0]), "head.0.weight": torch.tensor([[3.0]])}
    importance = {"backbone.0.w": torch.tensor([2.0, 4.0]), "head.0.weight": torch.tensor([[6.0]])}
    value = quadratic_penalty(parameters, anchor, importance)
    assert float(value.detach()) == pytest.approx(18.0)
    value.backward()
    # F·(θ − θ*), and nothing for a row that the anchor does not have.
    assert present(parameters["head.0.weight"].grad).tolist() == [[12.0], [0.0]]


def test_importances_merge_by_share_and_new_rows_keep_their_own() -> None:
    # α = 0.75: 0.75·4 + 0.25·8 = 5 and 0.75·0 + 0.25·4 = 1.
    old = {"head.0.weight": torch.tensor([[4.0, 0.0]]), "backbone.0.w": torch.tensor(2.0)}
    new = {
        "head.0.weight": torch.tensor([[8.0, 4.0], [3.0, 9.0]]),
        "backbone.0.w": torch.tensor(6.0),
    }
    merged = merged_importance(old, new, 0.75)
    assert merged["head.0.weight"].tolist() == [[5.0, 1.0], [3.0, 9.0]]
    assert float(merged["backbone.0.w"]) == pytest.approx(3.0)
    # Neither of the two is written into.
    assert new["head.0.weight"].tolist() == [[8.0, 4.0], [3.0, 9.0]]
    assert old["head.0.weight"].tolist() == [[4.0, 0.0]]


def test_the_first_importance_is_the_new_one() -> None:
    assert merged_importance({}, {"w": torch.tensor([3.0])}, 0.0)["w"].tolist() == [3.0]
