"""The merge attention against loops over its definition, and against torch's own attention."""

import math
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from grace.nn.attention import MergeAttention, Pick, tokens
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


def test_by_loops() -> None:
    """One image, two heads of two channels, three places: plain Python in double precision."""
    attention = made(4, 2)
    agnostic, specific = maps(1, 4, 1, 3)

    def normed(given: Tensor, place: int, norm: torch.nn.LayerNorm) -> list[float]:
        values = [float(given[0, channel, 0, place]) for channel in range(4)]
        mean = sum(values) / 4
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / 4 + norm.eps)
        scales, shifts = norm.weight.tolist(), norm.bias.tolist()
        rows = zip(values, scales, shifts, strict=True)
        return [(value - mean) / deviation * scale + shift for value, scale, shift in rows]

    def projected(token: list[float], layer: torch.nn.Linear) -> list[float]:
        rows = layer.weight.tolist()
        return [sum(w * x for w, x in zip(row, token, strict=True)) for row in rows]

    own = [normed(specific, place, attention.specific_norm) for place in range(3)]
    other = [normed(agnostic, place, attention.agnostic_norm) for place in range(3)]
    queries = [projected(token, attention.query) for token in own]
    keys = [projected(token, attention.agnostic_keys) for token in other]
    keys += [projected(token, attention.specific_keys) for token in own]
    values = [projected(token, attention.agnostic_values) for token in other]
    values += [projected(token, attention.specific_values) for token in own]
    expected = [0.0] * 4
    for head, query in product(range(2), queries):
        channels = (2 * head, 2 * head + 1)
        scores = [sum(query[c] * key[c] for c in channels) / math.sqrt(2) for key in keys]
        total = sum(math.exp(score) for score in scores)
        for score, value in zip(scores, values, strict=True):
            for channel in channels:
                expected[channel] += math.exp(score) / total * value[channel] / 3
    (found,) = attention(agnostic, specific)
    assert found.tolist() == pytest.approx(expected, abs=1e-5)


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


def test_pick() -> None:
    first, second = torch.zeros(1), torch.ones(1)
    assert Pick(0)((first, second)) is first
    assert Pick(1)((first, second)) is second


def test_even_attention_is_the_mean_of_all_values() -> None:
    """Queries of 0 look at every token alike."""
    attention = made(8, 4).requires_grad_(False)
    torch.nn.init.zeros_(attention.query.weight)
    agnostic, specific = maps(3, 8, 2, 2)
    other = attention.agnostic_values(attention.agnostic_norm(tokens(agnostic)))
    own = attention.specific_values(attention.specific_norm(tokens(specific)))
    torch.testing.assert_close(attention(agnostic, specific), torch.cat([other, own], 1).mean(1))
    # And where each token stands does not matter.
    moved = attention(agnostic.flip(2), specific.flip(3))
    torch.testing.assert_close(moved, attention(agnostic, specific))


def test_attention_of_any_queries_does_not_ask_where_tokens_stand() -> None:
    attention = made(8, 4).requires_grad_(False)
    agnostic, specific = maps(3, 8, 2, 2)
    moved = attention(agnostic.flip(3), specific.flip(2))
    torch.testing.assert_close(moved, attention(agnostic, specific))
    # A layer norm first: neither the level nor the size of a map matters.
    scaled = attention(3 * agnostic + 1, 5 * specific - 2)
    torch.testing.assert_close(scaled, attention(agnostic, specific), atol=1e-3, rtol=1e-3)
