"""Effective rank: values from the specification and from NumPy's SVD."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grace.nn.capacity import FeatureMoments, effective_rank, normalised_effective_rank


def moments_of(features: torch.Tensor, batch_size: int = 7) -> FeatureMoments:
    moments = FeatureMoments()
    for batch in features.split(batch_size):
        moments.update(batch)
    return moments


def test_rows_on_two_axes_of_equal_length_have_effective_rank_two() -> None:
    # docs/how-grace-works.md: rows ±e1, ±e2 → 2. Divided by min(N, d) = min(4, 3).
    rows = torch.tensor([[1.0, 0, 0], [-1, 0, 0], [0, 1, 0], [0, -1, 0]])
    assert effective_rank(moments_of(rows).singular_values()) == pytest.approx(2.0, abs=1e-9)
    assert moments_of(rows).result() == pytest.approx(2 / 3, abs=1e-9)


def test_rows_of_unequal_length() -> None:
    # docs/how-grace-works.md: rows ±3e1, ±e2 → σ = 3√2, √2, p = 3/4, 1/4,
    # exp(−¾ ln ¾ − ¼ ln ¼) = exp(0.562335) = 1.7548.
    rows = torch.tensor([[3.0, 0], [-3, 0], [0, 1], [0, -1]])
    sigma = moments_of(rows).singular_values()
    assert sigma.tolist() == pytest.approx([18**0.5, 2**0.5], abs=1e-9)
    assert effective_rank(sigma) == pytest.approx(1.7548, abs=5e-5)


def test_small_singular_values_are_dropped_but_not_from_the_divisor() -> None:
    sigma = torch.tensor([2.0, 2.0, 1e-5, 1e-6], dtype=torch.float64)
    assert effective_rank(sigma) == pytest.approx(2.0, abs=1e-9)
    assert normalised_effective_rank(sigma, 100, 4) == pytest.approx(0.5, abs=1e-9)


def test_constant_features_use_no_capacity() -> None:
    assert moments_of(torch.full((10, 4), 3.0)).result() == 0.0


def test_empty_data_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        FeatureMoments().result()


def reference(features: torch.Tensor) -> float:
    """Plain SVD of the stacked, centred features with NumPy (paper, Appendix B)."""
    z = features.double().numpy()
    sigma = np.linalg.svd(z - z.mean(axis=0), compute_uv=False)
    sigma = sigma[sigma > 1e-5]
    p = sigma / sigma.sum()
    return float(np.exp(-(p * np.log(p)).sum()) / min(z.shape))


@pytest.mark.parametrize("num_samples", [5, 63, 64, 500])
@pytest.mark.parametrize("offset", [0.0, 1.0, 1000.0])
def test_streaming_equals_a_plain_svd(num_samples: int, offset: float) -> None:
    generator = torch.Generator().manual_seed(num_samples)
    mixing = torch.randn(64, 64, generator=generator) * torch.logspace(0, -3, 64)
    features = torch.relu(torch.randn(num_samples, 64, generator=generator) @ mixing) + offset
    assert moments_of(features, 50).result() == pytest.approx(reference(features), abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    num_samples=st.integers(3, 40),
    num_features=st.integers(2, 12),
    scale=st.floats(0.1, 100),
    batch_size=st.integers(1, 50),
)
def test_range_and_invariance(
    seed: int, num_samples: int, num_features: int, scale: float, batch_size: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(num_samples, num_features, generator=generator, dtype=torch.float64)
    rotation = torch.linalg.qr(
        torch.randn(num_features, num_features, generator=generator, dtype=torch.float64)
    ).Q
    score = moments_of(features, batch_size).result()
    assert 1 / min(num_samples, num_features) - 1e-9 <= score <= 1 + 1e-9
    assert moments_of(scale * features @ rotation).result() == pytest.approx(score, abs=1e-6)
