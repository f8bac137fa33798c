"""What sweeps reduce to, by hand and against NumPy."""

import pytest
import torch

from grace.engine.reducers import Collect, SquaredGradients


def test_squared_gradients_are_means_over_batches() -> None:
    reducer = SquaredGradients()
    for weight, bias in (([3.0, -1.0], 0.5), ([1.0, 2.0], -1.5)):
        reducer.update({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    found = reducer.result()
    # (9 + 1)/2, (1 + 4)/2 and (0.25 + 2.25)/2: not the square of the mean, which is 4, ¼ and ¼.
    assert found["weight"].tolist() == pytest.approx([5.0, 2.5])
    assert float(found["bias"]) == pytest.approx(1.25)


def test_outputs_stand_in_the_order_of_the_data_in_float32() -> None:
    reducer = Collect()
    for start in (0, 2):
        outputs = torch.tensor([[start + 0.25], [start + 1.5]], dtype=torch.bfloat16)
        reducer.update(outputs, torch.zeros(2))
    assert reducer.result().tolist() == [[0.25], [1.5], [2.25], [3.5]]
    assert reducer.result().dtype == torch.float32
    assert len(Collect().result()) == 0
