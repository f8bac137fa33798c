"""The saturation measures against numbers computed without this package.

Model Q: features Ax with θ = A, a fixed head without bias, four points of three classes. Its values
were computed in float64 with numpy; Fisher and Hessian also by another route of differentiation.
"""

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from grace.nn.capacity import (
    LossSurface,
    adversarial_sharpness,
    expected_sharpness,
    fisher,
    measure,
    normal_noises,
    spectral_radius,
    weight_norm,
)
from grace.settings.experiment import MeasureSettings

A = torch.tensor([[1, 0.5], [-0.5, 2]], dtype=torch.float64)
HEAD = torch.tensor([[1, 0], [0, 1], [-1, -1]], dtype=torch.float64)
X = torch.tensor([[1, 0], [0, 1], [1, 1], [-1, 0.5]], dtype=torch.float64)
Y = torch.tensor([0, 1, 2, 0])
NO_OFFSET = torch.zeros(4)


def logits(named: Mapping[str, Tensor], rows: slice = slice(None)) -> Tensor:
    return X[rows] @ named["A"].T @ HEAD.T


def losses(named: Mapping[str, Tensor], rows: slice) -> Tensor:
    return F.cross_entropy(logits(named, rows), Y[rows], reduction="none")


@pytest.fixture(params=[256, 3, 1], ids=lambda chunk: f"chunks of {chunk}")
def model_q(request: pytest.FixtureRequest) -> LossSurface:
    return LossSurface({"A": A}, losses, 4, chunk=request.param)


def draws() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def test_loss_and_gradient(model_q: LossSurface) -> None:
    assert model_q.loss(NO_OFFSET) == pytest.approx(2.05485054, abs=5e-9)
    loss, gradient = model_q.gradient(NO_OFFSET)
    assert loss == pytest.approx(2.05485054, abs=5e-9)
    expected = [0.50721799, 0.29087429, 0.18821559, 0.41558883]
    assert gradient.tolist() == pytest.approx(expected, abs=5e-9)


def test_weight_norm(model_q: LossSurface) -> None:
    assert weight_norm(model_q) == pytest.approx(2.34520788, abs=5e-9)


def test_fisher_is_of_single_images_and_true_labels(model_q: LossSurface) -> None:
    squares = [float(g.square().sum()) for g in model_q.image_gradients()]
    expected = [0.21422301, 0.06902481, 8.90084592, 1.93237772]
    assert squares == pytest.approx(expected, abs=5e-9)
    assert fisher(model_q) == pytest.approx(0.69477947, abs=5e-9)
    # Not the squared gradient of the batch, and not labels from the model.
    batch = model_q.gradient(NO_OFFSET)[1].square().mean()
    assert float(batch) == pytest.approx(0.13750428, abs=5e-9)
    probabilities = logits({"A": A}).softmax(dim=1)
    sampled = sum(
        float(probabilities[i, k])
        * fisher(
            LossSurface(
                {"A": A},
                lambda named, rows, i=i, k=k: F.cross_entropy(  # type: ignore[misc]
                    logits(named, slice(i, i + 1)), torch.tensor([k]), reduction="none"
                ),
                1,
            )
        )
        / 4
        for i in range(4)
        for k in range(3)
    )
    assert sampled == pytest.approx(0.18272738, abs=5e-9)


def test_hessian(model_q: LossSurface) -> None:
    rows = [model_q.curvature(direction) for direction in torch.eye(4, dtype=torch.float64)]
    values = torch.linalg.eigvalsh(torch.stack(rows)).tolist()
    expected = [0.02958136, 0.12395762, 0.24792993, 0.32944059]
    assert values == pytest.approx(expected, abs=5e-9)
    start = torch.full((4,), 0.5, dtype=torch.float64)
    after_20 = spectral_radius(model_q.curvature, start, 21, 0.0)
    assert after_20 == pytest.approx(0.32941656, abs=5e-9)
    assert spectral_radius(model_q.curvature, start, 500, 0.0) == pytest.approx(
        0.32944059, abs=5e-9
    )


def test_power_iteration_with_eigenvalues_of_both_signs() -> None:
    def product(v: Tensor) -> Tensor:
        return torch.tensor([3.0, -3.0, 1.0], dtype=torch.float64) * v

    start = torch.ones(3, dtype=torch.float64)
    values = [spectral_radius(product, start, most, 0.0) for most in (1, 2, 3, 60)]
    assert values == pytest.approx([2.51661148, 2.92898402, 2.99180886, 3], abs=5e-9)
    # Of itself it ends after five products at the earliest, then by the relative change.
    counted: list[Tensor] = []
    spectral_radius(lambda v: counted.append(v) or product(v), start, 60, 1.0)  # type: ignore[func-returns-value]
    assert len(counted) == 5
    assert spectral_radius(product, start, 60, 1e-3) == pytest.approx(3, abs=1e-3)
    assert spectral_radius(torch.zeros_like, start, 60, 0.0) == 0


@pytest.mark.parametrize(
    ("radius", "steps", "value"),
    [
        (0.1, 1, 0.03722240),
        (0.1, 2, 0.07471948),
        (0.1, 5, 0.07472345),
        (0.1, 10, 0.07472381),
        (1.0, 10, 0.78855038),
    ],
)
def test_adversarial_sharpness(
    model_q: LossSurface, radius: float, steps: int, value: float
) -> None:
    assert adversarial_sharpness(model_q, radius, steps, draws()) == pytest.approx(value, abs=5e-9)


def test_ascent_from_a_flat_point_begins_at_random() -> None:
    """L = θ²/2 at 0: the gradient is 0, and the maximum in the ball is r²/2."""
    flat = LossSurface(
        {"w": torch.zeros(3, dtype=torch.float64)}, lambda w, _: w["w"].square().sum()[None] / 2, 1
    )
    assert adversarial_sharpness(flat, 0.1, 2, draws()) == pytest.approx(0.005)
    # Downhill in all directions: the best point is θ itself.
    peak = LossSurface(
        {"w": torch.zeros(3, dtype=torch.float64)}, lambda w, _: -w["w"].square().sum()[None], 1
    )
    assert adversarial_sharpness(peak, 0.1, 2, draws()) == 0


def test_expected_sharpness_of_single_pairs(model_q: LossSurface) -> None:
    axes = 0.1 * torch.eye(4, dtype=torch.float64)
    rises = [expected_sharpness(model_q, [e, e]) for e in axes]
    expected = [0.00124026, 0.00058089, 0.00117108, 0.00066250]
    assert [mean for mean, _ in rises] == pytest.approx(expected, abs=5e-9)
    assert rises[0][1] == 0
    mean, standard_error = expected_sharpness(model_q, axes)
    assert mean == pytest.approx(sum(expected) / 4, abs=5e-9)
    spread = torch.tensor(expected).std() / 2
    assert standard_error == pytest.approx(float(spread), abs=5e-9)


@pytest.mark.parametrize(("deviation", "value"), [(0.1, 0.00365598), (0.5, 0.09178634)])
def test_expected_sharpness_comes_near_the_integral(deviation: float, value: float) -> None:
    surface = LossSurface({"A": A}, losses, 4)
    mean, error = expected_sharpness(surface, normal_noises(4, deviation, 1000, draws()))
    assert error < 0.05 * value
    assert abs(mean - value) < 3 * error


def test_only_what_is_asked_with_draws_of_its_own() -> None:
    surface = LossSurface({"A": A}, losses, 4)
    asked: list[str] = []

    def drawn(name: str) -> torch.Generator:
        asked.append(name)
        return draws()

    assert measure(surface, MeasureSettings(measures=("effective_rank",)), drawn) == {}
    both = MeasureSettings(measures=("weight_norm", "expected_sharpness"), expected_deviation=0.5)
    found = measure(surface, both, drawn)
    assert list(found) == ["weight_norm", "expected_sharpness", "expected_sharpness_error"]
    assert asked == ["expected_sharpness"]
    every = MeasureSettings(
        measures=("fisher", "adversarial_sharpness", "hessian_radius"),
        adversarial_radius=0.1,
        hessian_products=300,
        hessian_tolerance=1e-12,
    )
    found = measure(surface, every, drawn)
    assert found["fisher"] == pytest.approx(0.69477947, abs=5e-9)
    assert found["adversarial_sharpness"] == pytest.approx(0.07472381, abs=5e-9)
    assert found["hessian_radius"] == pytest.approx(0.32944059, abs=5e-9)
