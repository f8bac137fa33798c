import math

import pytest
import torch

from grace.engine.loss_meter import LossMeter, NonFiniteLossError
from grace.engine.phase import Loss
from grace.engine.ranks import Ranks
from grace.methods.grace import Grace
from grace.settings.recipe import Recipe


def meter(*batches: tuple[dict[str, float], int]) -> LossMeter:
    """A meter that was given batches: losses, and the number of images."""
    made = LossMeter(torch.device("cpu"), Ranks())
    for losses, num_images in batches:
        made.add({name: Loss(torch.tensor(x)) for name, x in losses.items()}, num_images)
    return made


def test_batches_count_by_their_images() -> None:
    found = meter(({"a": 2.0, "b": -1.0}, 6), ({"a": 4.0, "b": 3.0}, 2)).means("here")
    # (6·2 + 2·4) / 8 and (6·(−1) + 2·3) / 8: a mean over batches would give 3 and 1.
    assert found == {"a": pytest.approx(2.5), "b": pytest.approx(0.0)}


def test_a_loss_that_only_some_batches_have_is_a_mean_over_all_images() -> None:
    found = meter(({"a": 1.0}, 3), ({"a": 1.0, "b": 4.0}, 1)).means("here")
    assert found == {"a": pytest.approx(1.0), "b": pytest.approx(1.0)}


def test_sums_do_not_lose_small_losses_beside_large_ones() -> None:
    # In float32, 1e8 + 1 is 1e8.
    found = meter(({"a": 1e8}, 1), *[({"a": 1.0}, 1)] * 9).means("here")
    assert found["a"] == pytest.approx(1e7 + 0.9, rel=1e-12)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_bad_batch_is_named(bad: float) -> None:
    batches = [({"a": 1.0, "b": 1.0}, 2), ({"a": 1.0, "b": bad}, 2), ({"a": bad, "b": 1.0}, 2)]
    with pytest.raises(NonFiniteLossError) as caught:
        meter(*batches).means("phase 'grow', epoch 3", "grow")
    assert caught.value.what == "loss 'b' is not finite in phase 'grow', epoch 3, batch 2"
    assert caught.value.phase == "grow"
    assert caught.value.remedy.startswith("lower the learning rate of this phase's recipe")
    caught.value.name_setting(Grace.Settings(grow=Recipe(epochs=1, lr=0.05)))
    assert caught.value.remedy == (
        "lower the learning rate of this phase, method.grow.lr=0.05, or its weight_decay"
    )
