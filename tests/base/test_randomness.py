"""Draws are seeded by what they are for: repeatable, independent, and nobody else's."""

import hashlib

import torch

from grace.base.randomness import derived_seed, generator, seeded_globally


def test_the_seed_is_a_hash_of_the_purpose() -> None:
    digest = hashlib.sha256(b"1993/augment/3/7").hexdigest()[:16]
    assert derived_seed(1993, "augment", 3, 7) == int(digest, 16) // 2
    assert derived_seed(1, "a", 12) != derived_seed(1, "a", 1, 2)
    drawn = torch.rand(5, generator=generator(1993, "augment", 3, 7))
    expected = torch.rand(5, generator=torch.Generator().manual_seed(int(digest, 16) // 2))
    assert torch.equal(drawn, expected)


def test_the_global_generator_is_seeded_within_and_as_it_was_afterwards() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with seeded_globally(5, "initialise"):
        inside = torch.rand(6)
    assert torch.equal(torch.rand(4), expected)
    assert torch.equal(inside, torch.rand(6, generator=generator(5, "initialise")))
