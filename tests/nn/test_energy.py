import math

import pytest
import torch
from torch import Tensor

from grace.nn.heads import MASKED
from grace.nn.losses.energy import (
    batch_energy,
    energy_loss,
    energy_share,
    fused_rows,
    module_labels,
    output_log_prior,
)


def logs(*values: float) -> Tensor:
    """Logits whose exponentials are these."""
    return torch.tensor([[math.log(value) for value in values]])


def test_module_labels_by_hand() -> None:
    # Tasks of three and two old classes are outputs 0 and 1; then two new classes.
    assert module_labels([3, 2], 2).tolist() == [0, 0, 0, 1, 1, 2, 3]
    assert module_labels([], 3).tolist() == [0, 1, 2]
    assert module_labels([1, 2], 0).tolist() == [0, 1, 1]


def test_energy_share_leaves_what_is_forgotten_out() -> None:
    outputs, energies = logs(1, 3), logs(2, 4)
    outputs[0, 0] = MASKED
    energies[0, 1] = MASKED
    # (3 | 2) of 5.
    assert energy_share(outputs, energies).exp().tolist() == pytest.approx([0.4], abs=1e-6)


def test_energy_share_outlives_float16() -> None:
    # A softmax mass of e⁻⁸⁰ is 0 in float16, and its logarithm would be −∞.
    share = energy_share(torch.tensor([[80.0]]).half(), torch.tensor([[0.0]]).half())
    assert share.dtype == torch.float32
    assert float(share) == pytest.approx(-80, abs=1e-4)


def test_the_gradient_of_batch_energy_is_that_of_the_batchs_log_sum() -> None:
    # d/dl_n of 2 · log(e^{l_1} + e^{l_2}) at (0.6, 0.2): 2 · 0.6/0.8 and 2 · 0.2/0.8.
    shares = torch.tensor([0.6, 0.2]).log().requires_grad_(True)
    (gradient,) = torch.autograd.grad(batch_energy(shares, shares), shares)
    assert gradient.tolist() == pytest.approx([1.5, 0.5], abs=1e-6)
    # A process that has the second row alone finds the same for it.
    own = torch.tensor([0.2]).log().requires_grad_(True)
    (gradient,) = torch.autograd.grad(batch_energy(own, shares), own)
    assert gradient.tolist() == pytest.approx([0.5], abs=1e-6)


def test_energy_loss_by_hand() -> None:
    # Outputs (3, 5), energies (2, 7). Class 1 is there, by output 0: (1, 5 | 2, 7), 7 of 15.
    loss = energy_loss(logs(3, 5), logs(2, 7), torch.tensor([1]), torch.tensor([0]))
    assert float(loss) == pytest.approx(math.log(15 / 7), abs=1e-6)


def test_energy_loss_spares_outputs_of_all_classes_of_the_batch() -> None:
    outputs = torch.cat([logs(3, 5, 4), logs(2, 6, 1)]).requires_grad_(True)
    energies = torch.cat([logs(2, 7), logs(1, 1)])
    # Outputs 0 and 2 stand for somebody: (1, 5, 1 | 2, 7) and (1, 6, 1 | 1, 1).
    loss = energy_loss(outputs, energies, torch.tensor([0, 1]), torch.tensor([2, 0, 0]))
    expected = (math.log(16 / 2) + math.log(10 / 1)) / 2
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-6)
    (gradient,) = torch.autograd.grad(loss, outputs)
    # The mean of two softmax values: half of 5/16 and of 6/10; nothing reaches the others.
    assert gradient.tolist() == [
        pytest.approx([0, 5 / 32, 0], abs=1e-6),
        pytest.approx([0, 6 / 20, 0], abs=1e-6),
    ]


def test_fused_rows_by_hand() -> None:
    old = torch.tensor([[1.0], [2.0], [9.0]]), torch.tensor([0.5, -1.0, 4.0])
    prototypes = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.1, 0.2])
    new = torch.tensor([[5.0, 6.0]]), torch.tensor([7.0])
    correction = torch.tensor([1.0, -0.5]), torch.tensor([10.0, 20.0])
    # Class 0 is of task 0, factor 2; classes 1 and 2 of task 1, factor ½.
    weight, bias = fused_rows(old, prototypes, new, correction, torch.tensor([0, 1, 1]))
    assert weight.tolist() == [[1.0, 2.0, 4.0], [2.0, 1.5, 2.0], [9.0, 1.5, 2.0], [0.0, 5.0, 6.0]]
    # 0.5 + 2·0.1 + 10, −1 + 0.2/2 + 20, 4 + 0.2/2 + 20, and the new class's own.
    assert bias.tolist() == pytest.approx([10.7, 19.1, 24.1, 7.0], abs=1e-5)


def test_output_log_prior_by_hand() -> None:
    # Classes 0 and 1 are one output: their mean share is (0.1 + 0.3)/2.
    log_prior = torch.tensor([0.1, 0.3, 0.6]).log()
    found = output_log_prior(log_prior, torch.tensor([0, 0, 1]))
    assert found.exp().tolist() == pytest.approx([0.2, 0.6])
