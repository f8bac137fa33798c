"""Auto-encoders as a head: their scores in plain loops, draws, growth, masks, the ONNX file."""

import math

import pytest
import torch

from grace.base.randomness import generator
from grace.nn.autoencoders import AutoEncoders
from grace.nn.expandable import ExpandableNetwork
from grace.nn.heads import MASKED
from grace.nn.weights import build_backbone


def head(in_features: int = 5, num_classes: int = 3, seed: int = 0) -> AutoEncoders:
    return AutoEncoders(in_features, num_classes, generator(seed, "test"), latent_dim=2)


def test_scores_are_minus_a_tenth_of_the_l1_error_in_plain_loops() -> None:
    made, features = head(), torch.rand(4, 5, generator=generator(1)) * 3
    scores, latents = made(features).tolist(), made.encode(features).tolist()
    for n, feature in enumerate(features.tolist()):
        for c in range(3):
            encoder, decoder = made.encoders[c].tolist(), made.decoders[c].tolist()
            hidden = [math.tanh(sum(w * x for w, x in zip(row, feature, strict=True)))
                      for row in encoder]  # fmt: skip
            again = [math.tanh(sum(w * x for w, x in zip(row, hidden, strict=True)))
                     for row in decoder]  # fmt: skip
            error = sum(abs(a - b) for a, b in zip(again, feature, strict=True))
            assert scores[n][c] == pytest.approx(-0.1 * error, abs=1e-6)
            assert latents[n][c] == pytest.approx(hidden, abs=1e-6)


def test_scores_are_limited() -> None:
    # tanh cannot reach a feature of 6000: the error is at least 5999.
    made = head(in_features=1)
    assert made(torch.tensor([[6000.0]])).tolist() == [[-500.0] * 3]
    assert made(torch.tensor([[4000.0]]))[0, 0] > -401


def test_fresh_weights_are_those_of_a_convolution() -> None:
    """torch draws a 1×1 convolution of n inputs from U(−1/√n, 1/√n), of deviation 1/√(3n)."""
    made = AutoEncoders(64, 40, generator(0, "test"))
    for weight, inputs in ((made.encoders, 64), (made.decoders, 32)):
        conv = torch.nn.Conv2d(inputs, 2000, 1, bias=False).weight.detach()
        assert float(weight.detach().abs().max()) <= inputs**-0.5
        assert float(weight.detach().max()) == pytest.approx(inputs**-0.5, rel=1e-2)
        assert float(weight.detach().std()) == pytest.approx((3 * inputs) ** -0.5, rel=1e-2)
        assert float(conv.std()) == pytest.approx((3 * inputs) ** -0.5, rel=1e-2)


def test_growth_keeps_the_old_ones_exactly() -> None:
    made = head()
    made.mask([1])
    kept = [weight.clone() for weight in made.parameters()]
    grown = made.grown(5, 5, generator(1, "growth"))
    for old, before, new in zip(made.parameters(), kept, grown.parameters(), strict=True):
        assert torch.equal(old, before)
        assert torch.equal(new[:3], old)
        assert new.requires_grad
        fan_in = new.shape[2]
        assert 0 < float(new[3:].detach().abs().max()) <= fan_in**-0.5
    features = torch.rand(2, 5)
    assert grown.masked == (1,)
    assert torch.equal(grown(features)[:, :3], made(features))
    other = made.grown(5, 5, generator(2, "growth"))
    assert not torch.equal(other.encoders[3:], grown.encoders[3:])
    # Without a new class nothing is fresh.
    same = made.grown(5, 3, generator(1, "growth"))
    assert torch.equal(same.encoders, made.encoders)


def test_a_forgotten_class_has_no_score() -> None:
    made = head()
    made.mask([0])
    scores = made(torch.rand(2, 5))
    assert scores[:, 0].tolist() == [MASKED] * 2
    assert bool((scores[:, 1:] > -500).all())


def test_the_published_number_of_parameters() -> None:
    """463,504 of ResNet-32, and 2·64·32 for each of 100 classes: 873,104."""
    from grace.settings.experiment import BackboneSettings

    with torch.device("meta"):
        backbone = build_backbone(BackboneSettings(name="resnet32"), 3, 0, "test")
        made = AutoEncoders(64, 100, None)
    counts = ExpandableNetwork([backbone], made).num_parameters()
    assert (counts.backbones, counts.heads, counts.total) == (463_504, 409_600, 873_104)


def test_half_precision_sums_in_float32() -> None:
    made = AutoEncoders(512, 3, generator(0))
    features = torch.rand(4, 512, generator=generator(1))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        scores = made(features.bfloat16())
    assert scores.dtype == torch.float32
    with torch.no_grad():
        torch.testing.assert_close(scores, made(features), atol=0.05, rtol=0.01)
