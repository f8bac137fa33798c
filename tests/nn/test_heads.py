import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grace.base.randomness import generator
from grace.nn.heads import MASKED, LinearHead, align_weights


def head(in_features: int, num_classes: int, seed: int = 0) -> LinearHead:
    return LinearHead(in_features, num_classes, generator(seed, "test"))


def test_fresh_head_is_uniform_within_the_bound_of_the_spec() -> None:
    # docs/protocols.md#heads: for 64 features the bound is 0.2165.
    # A uniform's std is bound/sqrt(3) = 1/8.
    weight = head(64, 500).weight.detach()
    assert float(weight.abs().max()) <= math.sqrt(3 / 64)
    assert float(weight.max()) == pytest.approx(0.2165, abs=1e-3)
    assert float(weight.min()) == pytest.approx(-0.2165, abs=1e-3)
    assert float(weight.std()) == pytest.approx(0.125, abs=1e-3)
    assert torch.all(head(64, 500).bias == 0)


def test_logits_by_hand() -> None:
    small = head(2, 2)
    with torch.no_grad():
        small.weight.copy_(torch.tensor([[1.0, 2.0], [-1.0, 0.5]]))
        small.bias.copy_(torch.tensor([0.5, -1.0]))
    # (1·3 + 2·4 + 0.5, −1·3 + 0.5·4 − 1)
    assert small(torch.tensor([[3.0, 4.0]])).tolist() == [[11.5, -2.0]]


def test_scores_stay_float32_where_backbones_compute_in_bfloat16() -> None:
    # bfloat16 has no number between 8 and 8.0625, nor between 1 and 1 + 2⁻⁷.
    head = LinearHead(1, 2, None)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1 + 2**-8], [1.0]]))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = head(torch.tensor([[8.0]], dtype=torch.bfloat16))
    assert scores.tolist() == [[8.03125, 8.0]]


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 8), st.integers(0, 8), st.integers(1, 6), st.integers(0, 6))
def test_growth_keeps_the_old_block_bit_for_bit(
    old_width: int, wider: int, old_classes: int, more: int
) -> None:
    old = head(old_width, old_classes)
    with torch.no_grad():
        old.bias.normal_()
    kept = old.weight.clone()
    new = old.grown(old_width + wider, old_classes + more, generator(1, "growth"))
    assert (new.num_classes, new.in_features) == (old_classes + more, old_width + wider)
    assert torch.equal(new.weight[:old_classes, :old_width], old.weight)
    assert torch.equal(new.bias[:old_classes], old.bias)
    assert torch.all(new.bias[old_classes:] == 0)
    assert torch.equal(old.weight, kept)
    assert new.weight.requires_grad
    assert new.weight.is_leaf


def test_growth_draws_everything_else_with_the_total_width_as_fan_in() -> None:
    old = head(64, 200)
    new = old.grown(128, 400, generator(1, "growth")).requires_grad_(False)
    bound = math.sqrt(3 / 128)
    for fresh in (new.weight[:200, 64:], new.weight[200:]):
        assert float(fresh.abs().max()) <= bound
        assert float(fresh.abs().max()) == pytest.approx(bound, rel=1e-2)
        assert float(fresh.std()) == pytest.approx(bound / math.sqrt(3), rel=2e-2)


def test_alignment_by_hand() -> None:
    small = head(2, 3)
    with torch.no_grad():
        small.weight.copy_(torch.tensor([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0]]))
        small.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    # Old lengths 5 and 1, mean 3; new length 10: γ = 0.3 and the new row becomes (1.8, 2.4).
    assert align_weights(small, num_new=1) == pytest.approx(0.3)
    expected = torch.tensor([[3.0, 4.0], [0.0, 1.0], [1.8, 2.4]])
    torch.testing.assert_close(small.weight.detach(), expected)
    assert small.bias.tolist() == [1.0, 2.0, 3.0]


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 12),
    st.floats(0.01, 50),
    st.integers(0, 99),
)
def test_alignment_equalises_mean_lengths(
    num_old: int, num_new: int, width: int, scale: float, seed: int
) -> None:
    mixed = head(width, num_old + num_new, seed)
    with torch.no_grad():
        mixed.weight[num_old:] *= scale
    old = mixed.weight[:num_old].clone()
    align_weights(mixed, num_new)
    lengths = mixed.weight.detach().norm(dim=1)
    assert torch.equal(mixed.weight[:num_old], old)
    torch.testing.assert_close(lengths[:num_old].mean(), lengths[num_old:].mean())
    assert align_weights(mixed, num_new) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("num_new", [0, 4])
def test_alignment_without_old_or_new_rows_does_nothing(num_new: int) -> None:
    whole = head(3, 4)
    before = whole.weight.clone()
    assert align_weights(whole, num_new) == 1.0
    assert torch.equal(whole.weight, before)


def test_alignment_of_zero_rows_is_refused() -> None:
    empty = head(3, 4)
    with torch.no_grad():
        empty.weight[2:] = 0
    with pytest.raises(ValueError, match="all 2 new rows"):
        align_weights(empty, 2)


def test_a_masked_class_has_a_probability_of_zero_and_the_others_share_the_rest() -> None:
    made = head(4, 3).requires_grad_(False)
    features = torch.rand(5, 4, generator=generator(1))
    before = made(features).softmax(1)
    made.mask([1])
    found = made(features)
    assert found[:, 1].tolist() == [float(MASKED)] * 5
    shares = before[:, [0, 2]] / before[:, [0, 2]].sum(1, keepdim=True)
    torch.testing.assert_close(found.softmax(1)[:, [0, 2]], shares)
    assert float(found.softmax(1)[:, 1].max()) == 0.0
