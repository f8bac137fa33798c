"""The merge attention against loops over its definition, and against torch's own attention."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from grace.nn.attention import MergeAttention, tokens
from support.typed import present


def made(width: int, num_heads: int) -> MergeAttention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        attention = MergeAttention(width, num_heads)
        with torch.no_grad():
            for norm in (attention.agnostic_norm, attention.specific_norm):
                norm.weight.uniform_(0.5, 2)
                norm.bias.uniform_(-1, 1)
    return attention


def maps(*shape: int) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(4)
    return torch.rand(shape, generator=draws), torch.rand(shape, generator=draws)


def test_against_torchs_attention() -> None:
    attention = made(16, 8)
    agnostic, specific = maps(5, 16, 2, 3)
    other = attention.agnostic_norm(agnostic.permute(0, 2, 3, 1).reshape(5, 6, 16))
    own = attention.specific_norm(specific.permute(0, 2, 3, 1).reshape(5, 6, 16))

    def heads(rows: Tensor) -> Tensor:
        return rows.reshape(5, -1, 8, 2).permute(0, 2, 1, 3)

    keys = torch.cat([attention.agnostic_keys(other), attention.specific_keys(own)], 1)
    values = torch.cat([attention.agnostic_values(other), attention.specific_values(own)], 1)
    gathered = F.scaled_dot_product_attention(
        heads(attention.query(own)), heads(keys), heads(values)
    )
    expected = gathered.permute(0, 2, 1, 3).reshape(5, 6, 16).mean(1)
    biases = {name for name, _ in attention.named_parameters() if name.endswith("bias")}
    assert biases == {"agnostic_norm.bias", "specific_norm.bias"}
    torch.testing.assert_close(attention(agnostic, specific), expected)


def test_no_gradient_goes_back_into_the_agnostic_map() -> None:
    agnostic, specific = (given.requires_grad_() for given in maps(2, 8, 2, 2))
    attention = made(8, 8)
    attention(agnostic, specific).square().sum().backward()
    assert agnostic.grad is None
    assert bool(present(specific.grad).any())
    # What looks at its tokens learns all the same.
    weights = (attention.agnostic_keys.weight, attention.agnostic_values.weight)
    assert all(weight.grad is not None and bool(weight.grad.any()) for weight in weights)


def test_heads_that_do_not_divide_the_width_are_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"7 attention heads .* 64 channels"):
        MergeAttention(64, 7)


def test_tokens_of_every_kind_of_map() -> None:
    grid = torch.arange(12.0).reshape(1, 2, 2, 3)
    # Places row by row, with the two channels of each.
    assert tokens(grid)[0].tolist() == [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10], [5, 11]]
    assert torch.equal(tokens(grid.to(memory_format=torch.channels_last)), tokens(grid))
    row = torch.rand(2, 5, 3)
    assert torch.equal(tokens(row), row)
    assert torch.equal(tokens(row[:, 0]), row[:, :1])
