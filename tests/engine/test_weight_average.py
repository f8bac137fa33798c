"""The mean of the weights of a phase's last epochs, against numbers worked by hand."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from grace.engine.phase import Part
from support.hand_worked import MeanTimes, Shelf, phase, recipe, trainer, value_of, white
from support.tiny_streams import same, state


@pytest.mark.parametrize("average", [0, 1, 2, 5])
def test_a_line_ends_with_the_mean_of_its_last_epochs(average: int) -> None:
    """½(w + b − y)² of eight labels in one batch: both numbers have the slope w + b − mean y."""
    labels, module = [0, 1, 1, 2, 3, 0, 1, 3], MeanTimes(2.0, bias=0.5)
    chosen = recipe(epochs=5, momentum=0.5, average_epochs=average)
    trainer().run(phase({"f": Part(module)}, recipe=chosen, data=white(labels)))
    weights, speed, steps = np.array([2.0, 0.5]), np.zeros(2), []
    for _ in range(5):
        speed = 0.5 * speed + (weights.sum() - np.mean(labels))
        weights = weights - 0.1 * speed
        steps.append(weights)
    expected = np.mean(steps[-max(average, 1) :], axis=0)
    assert [value_of(module), value_of(module, "bias")] == pytest.approx(expected, rel=1e-5)


def test_running_statistics_are_averaged_and_counts_are_not() -> None:
    # White pixels are 1, and their variance is 0: the running mean is 1 − 0.9ᵏ, the variance 0.9ᵏ.
    norm, module = nn.BatchNorm2d(3), MeanTimes(1.0)
    parts = {"norm": Part(norm), "f": Part(module, ["norm"])}
    trainer().run(phase(parts, recipe=recipe(epochs=3, average_epochs=2)))
    mean = (0.9**2 + 0.9**3) / 2
    assert norm.running_var.tolist() == pytest.approx([mean] * 3)
    assert norm.running_mean.tolist() == pytest.approx([1 - mean] * 3)
    assert int(norm.num_batches_tracked) == 3


def test_what_does_not_train_is_untouched() -> None:
    still, norm, module = MeanTimes(1.5), nn.BatchNorm2d(3), MeanTimes(2.0, bias=0.25)
    before = state(still), state(norm)
    parts = {
        "norm": Part(norm, trains=False),
        "still": Part(still, ["norm"], trains=False),
        "f": Part(module, ["still"], trains=["value"]),
    }
    trainer().run(phase(parts, recipe=recipe(epochs=3, average_epochs=3)))
    assert same(state(still), before[0])
    assert same(state(norm), before[1])
    assert value_of(module, "bias") == 0.25
    assert value_of(module) != 2.0


@pytest.mark.parametrize(("epoch", "is_kept"), [(1, False), (2, False), (3, True), (4, False)])
def test_a_snapshot_holds_the_mean_only_while_it_grows(epoch: int, is_kept: bool) -> None:
    item = phase({"f": Part(MeanTimes(2.0))}, recipe=recipe(epochs=4, average_epochs=2))
    shelf = Shelf(epoch)
    trainer().run(item, shelf)
    assert shelf.snapshot is not None
    assert any(name.startswith("mean/") for name in shelf.snapshot.tensors) == is_kept
    without = replace(item, parts={"f": Part(MeanTimes(2.0))}, recipe=recipe(epochs=4))
    trainer().run(without, shelf)
    assert not any(name.startswith("mean/") for name in shelf.snapshot.tensors)
