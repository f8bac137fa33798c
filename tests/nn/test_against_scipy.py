"""Losses on random numbers against SciPy and scikit-learn, in float64, and their known limits."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import log_softmax, logsumexp, rel_entr, softmax
from scipy.stats import entropy
from sklearn.metrics import log_loss, mean_squared_error

from grace.nn.losses.balance import (
    accumulated_norms,
    class_gradient_weights,
    distillation_factor,
    distribution_aware_distillation,
    effective_number_weights,
    lost_direction,
    lost_evenness,
)
from grace.nn.losses.classification import cross_entropy, new_class_cross_entropy
from grace.nn.losses.confusion import confusion_weights, floored_cross_entropy
from grace.nn.losses.distillation import (
    balanced_distillation,
    feature_distillation,
    guided_transfer,
    info_nce,
    logit_distillation,
    soft_distillation,
)
from grace.nn.losses.energy import batch_energy, energy_share

DRAWS = np.random.default_rng(5)
STUDENT, TEACHER = (3 * DRAWS.normal(size=(20, 6)) for _ in range(2))
LABELS = DRAWS.permutation(np.arange(20) % 6)
Z, Z_T, Y = torch.from_numpy(STUDENT), torch.from_numpy(TEACHER), torch.from_numpy(LABELS)
T = 2.0


def test_cross_entropies() -> None:
    classes = range(6)
    expected = log_loss(LABELS, softmax(STUDENT, 1), labels=classes)
    assert float(cross_entropy(Z, Y)) == pytest.approx(expected)
    floored = -np.log(softmax(STUDENT, 1)[np.arange(20), LABELS] + 0.01).mean()
    assert float(floored_cross_entropy(Z, Y, floor=0.01)) == pytest.approx(floored, rel=1e-5)
    # Bayes: a classifier of balanced classes, told how often each occurs.
    prior = np.array([0.3, 0.1, 0.2, 0.2, 0.15, 0.05])
    told = softmax(STUDENT, 1) * prior
    expected = log_loss(LABELS, told / told.sum(1, keepdims=True), labels=classes)
    found = cross_entropy(Z, Y, torch.from_numpy(prior).log())
    assert float(found) == pytest.approx(expected, rel=1e-5)
    # Label smoothing: the cross-entropy of a softer target, which the prior makes follow it.
    own = np.eye(6)[LABELS]
    for log_prior, even in ((None, np.full(6, 1 / 6)), (torch.from_numpy(prior).log(), prior)):
        shared = torch.from_numpy(0.3 * even)
        logits = STUDENT if log_prior is None else STUDENT + np.log(prior)
        expected = -((0.7 * own + 0.3 * even) * log_softmax(logits, 1)).sum(1).mean()
        assert float(cross_entropy(Z, Y, log_prior, shared)) == pytest.approx(expected, rel=1e-5)


def test_cross_entropy_among_new_classes() -> None:
    new = LABELS >= 2
    among = log_loss(LABELS[new] - 2, softmax(STUDENT[new, 2:], 1), labels=range(4))
    assert float(new_class_cross_entropy(Z, Y, num_old=2)) == pytest.approx(among)
    assert float(new_class_cross_entropy(Z, Y, num_old=0)) == pytest.approx(
        float(cross_entropy(Z, Y))
    )


def divergence(temperature: float) -> float:
    """KL(σ(z_T/T) ‖ σ(z/T)), a mean over the rows."""
    shares = softmax(TEACHER / temperature, 1), softmax(STUDENT / temperature, 1)
    return float(rel_entr(*shares).sum(1).mean())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0, 7.0])
def test_distillation(temperature: float) -> None:
    expected = divergence(temperature)
    found = float(logit_distillation(Z, Z_T, temperature))
    assert found == pytest.approx(temperature**2 * expected, rel=1e-4)
    # The cross-entropy is the divergence and the teacher's own entropy.
    own = float(entropy(softmax(TEACHER / temperature, 1), axis=1).mean())
    assert float(soft_distillation(Z, Z_T, temperature)) == pytest.approx(expected + own, rel=1e-5)


def test_gradients_of_distillation_are_gaps_between_softened_predictions() -> None:
    gap = torch.from_numpy(softmax(STUDENT / T, 1) - softmax(TEACHER / T, 1))
    leaf = Z.clone().requires_grad_()
    for loss, factor in ((logit_distillation, T), (soft_distillation, 1 / T)):
        (gradient,) = torch.autograd.grad(loss(leaf, Z_T, T), leaf)
        torch.testing.assert_close(gradient, factor * gap / 20, rtol=1e-4, atol=1e-6)


def test_balanced_distillation() -> None:
    weights = np.array([0.2, 0.5, 1.0, 1.3, 1.4, 1.6])
    target = weights * softmax(TEACHER / T, 1)
    target /= target.sum(1, keepdims=True)
    expected = -(target * log_softmax(STUDENT / T, 1)).sum(1).mean()
    found = balanced_distillation(Z, Z_T, torch.from_numpy(weights), T)
    assert float(found) == pytest.approx(expected, rel=1e-5)
    even = balanced_distillation(Z, Z_T, torch.full((6,), 3.0), T)
    assert float(even) == pytest.approx(float(soft_distillation(Z, Z_T, T)), rel=1e-6)


def test_features() -> None:
    expected = mean_squared_error(TEACHER, STUDENT)
    assert float(feature_distillation(Z, Z_T)) == pytest.approx(expected)


def test_effective_numbers() -> None:
    counts = np.array([3, 500, 17, 1, 90, 260])
    weights = (1 - 0.99) / (1 - 0.99**counts)
    expected = 6 * weights / weights.sum()
    found = effective_number_weights(torch.from_numpy(counts), 0.99)
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_lost_images() -> None:
    lost = np.array([480.0, 0.0, 13.0, 250.0])
    assert float(lost_evenness(torch.from_numpy(lost))) == pytest.approx(
        float(entropy(lost + 0.001, base=4)), rel=1e-5
    )
    direction = lost_direction(torch.from_numpy(lost))
    assert direction.tolist() == pytest.approx((lost / np.linalg.norm(lost)).tolist(), rel=1e-6)


def test_distillation_where_images_were_lost() -> None:
    direction, evenness = np.array([0.1, 0.0, 0.7, 0.7, 0.05, 0.1]), 0.3
    target = softmax(TEACHER / T, 1)
    mixed = direction * STUDENT + (1 - direction) * TEACHER
    plain, second = (-(target * log_softmax(z / T, 1)).sum(1).mean() for z in (STUDENT, mixed))
    found = distribution_aware_distillation(
        Z, Z_T, torch.from_numpy(direction), torch.tensor(evenness), T
    )
    assert float(found) == pytest.approx(0.3 * plain + 0.7 * second, rel=1e-5)


def test_energies() -> None:
    share = logsumexp(TEACHER, 1) - logsumexp(np.hstack([STUDENT, TEACHER]), 1)
    found = energy_share(Z, Z_T)
    assert found.tolist() == pytest.approx(share.tolist(), abs=1e-5)
    expected = 20 * softmax(share) @ share
    assert float(batch_energy(found, found)) == pytest.approx(expected, rel=1e-5)


def test_transfer_from_a_guide() -> None:
    new = LABELS >= 2
    guide = TEACHER[:, 2:].copy()
    guide[new, LABELS[new] - 2] += 9  # It knows the answers, so that the gate is open.
    shares = softmax(guide[new] / T, 1), softmax(STUDENT[new, 2:] / T, 1)
    expected = rel_entr(*shares).sum(1).mean()
    found = guided_transfer(Z, torch.from_numpy(guide), Y, 2, T)
    assert float(found) == pytest.approx(expected, rel=1e-5)


def test_confusion_weights() -> None:
    ordered = np.sort(STUDENT, 1)[:, ::-1]
    share = (ordered[:, 0] - ordered[:, 1]) / (ordered[:, 0] - ordered[:, -1])
    found = confusion_weights(Z, 4.0)
    assert found.tolist() == pytest.approx((1 + np.exp(-4 * share)).tolist(), rel=1e-5)
    # The level and the scale of all scores do not matter.
    torch.testing.assert_close(confusion_weights(7 * Z - 3, 4.0), found)


def test_views_are_told_apart_by_a_cross_entropy_of_cosines() -> None:
    cosines = 1 - cdist(STUDENT, TEACHER, "cosine")
    np.fill_diagonal(cosines, -np.inf)
    partners = np.arange(20) ^ 1
    expected = -log_softmax(cosines / 0.2, 1)[np.arange(20), partners].mean()
    assert float(info_nce(Z, Z_T, 0.2)) == pytest.approx(expected, rel=1e-5)
    # Lengths do not matter.
    assert float(info_nce(3 * Z, 0.2 * Z_T, 0.2)) == pytest.approx(expected, rel=1e-5)


def test_gradients_are_reweighted() -> None:
    lengths = np.linalg.norm(STUDENT, axis=1)
    start = torch.full((20,), 0.5, dtype=torch.float64)
    found = accumulated_norms(start, Z)
    assert found.tolist() == pytest.approx((0.5 + lengths).tolist())
    weights = class_gradient_weights(found, torch.arange(8), torch.arange(8, 20), 0.5)
    old, new = 0.5 + lengths[:8], 0.5 + lengths[8:]
    ratio = new.mean() / old.mean()
    expected = [*(old.min() / old * min(1, ratio)), *(new.min() / new * min(1, ratio / 2))]
    assert weights.tolist() == pytest.approx(expected)
    factor = distillation_factor(Z, Z_T)
    assert float(factor) == pytest.approx(np.linalg.norm(STUDENT) / np.linalg.norm(TEACHER))
