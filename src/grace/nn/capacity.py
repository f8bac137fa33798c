"""How full a backbone is: the share of feature directions in use, and the loss around its weights.

Shapes: N samples or images of the probe set, d features, n parameters, B images of a chunk.

Saturation is the paper's Appendix B. The other measures (paper, Figure 5) depend on the mean loss
L(θ) of N images alone, with everything but the parameters θ fixed. The paper gives no formulas;
docs/protocols.md#measures-of-saturation lists the choices.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from statistics import fmean, stdev
from typing import final

import torch
from torch import Tensor

from grace.base.errors import GraceError
from grace.settings.experiment import MeasureSettings


def effective_rank(singular_values: Tensor, *, drop_below: float = 1e-5) -> float:
    """Exponential of the entropy of the normalised singular values.

    p_i = σ_i / Σσ,  eRank = exp(−Σ p_i ln(p_i + 1e-12)), over the σ_i greater than ``drop_below``.

    Args:
        singular_values: σ ≥ 0, shape (k,); not squared.
        drop_below: values up to this count as numerical noise (docs/how-grace-works.md).

    Returns:
        A value in [1, k]; 0 when no singular value is left (constant features).
    """
    sigma = singular_values.double()
    sigma = sigma[sigma > drop_below]
    if len(sigma) == 0:
        return 0.0
    p = sigma / sigma.sum()
    return float(torch.exp(-(p * torch.log(p + 1e-12)).sum()))


def normalised_effective_rank(
    singular_values: Tensor, num_samples: int, num_features: int
) -> float:
    """Saturation score eRank / min(N, d), in [0, 1] (paper, Appendix B, last equation).

    The divisor is not reduced for dropped singular values (docs/how-grace-works.md).

    Args:
        singular_values: σ ≥ 0 of the centred features, shape (k,).
        num_samples: N, at least 1.
        num_features: d, at least 1.
    """
    return effective_rank(singular_values) / min(num_samples, num_features)


@final
class FeatureMoments:
    """Computes saturation batch by batch, in O(d²) memory.

    Accumulates in float64 the sum and the Gram matrix of the features, shifted by the first
    batch's mean so that centring at the end cancels no digits. With S = Σ(z−c) and
    G = Σ(z−c)(z−c)ᵀ, the centred Gram matrix is G − SSᵀ/N, and its eigenvalues are the squared
    singular values of the centred N×d feature matrix.
    """

    def __init__(self) -> None:
        self._num_samples = 0
        self._shift: Tensor | None = None
        self._sum: Tensor | None = None
        self._gram: Tensor | None = None

    def update(self, outputs: Tensor, labels: Tensor | None = None) -> None:
        """Add one batch of features (B, d); labels are not used."""
        features = outputs.detach().double()
        if self._shift is None or self._sum is None or self._gram is None:
            self._shift = features.mean(dim=0)
            self._sum = torch.zeros_like(self._shift)
            self._gram = torch.zeros_like(torch.outer(self._shift, self._shift))
        shifted = features - self._shift
        self._num_samples += len(features)
        self._sum += shifted.sum(dim=0)
        self._gram += shifted.T @ shifted

    def singular_values(self) -> Tensor:
        """Return the singular values (d,) of the centred feature matrix, descending.

        Raises:
            GraceError: before the first sample.
        """
        if self._sum is None or self._gram is None:
            raise GraceError("saturation needs at least one sample: the data of the sweep is empty")
        centred = self._gram - torch.outer(self._sum, self._sum) / self._num_samples
        eigenvalues: Tensor = torch.linalg.eigvalsh(centred.cpu())
        return eigenvalues.clamp_min(0).sqrt().flip(0)

    def result(self) -> float:
        """Return the saturation of all batches, in [0, 1]."""
        sigma = self.singular_values()
        return normalised_effective_rank(sigma, self._num_samples, len(sigma))


Losses = Callable[[Mapping[str, Tensor], slice], Tensor]
"""Maps parameters by name and some rows of the probe set to the losses (B,) of these images."""


@final
class LossSurface:
    """The mean loss L(θ) of a probe set. Losses have θ's precision; all sums are in float64.

    Args:
        parameters: θ by name, of any shapes and one type; not changed.
        losses: the loss of each image; it must leave its modules and buffers as they are.
        num_images: N.
        chunk: images B of one pass. More: faster on a GPU, more memory.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], losses: Losses, num_images: int, chunk: int = 256
    ) -> None:
        assert num_images > 0
        self.point = torch.cat([tensor.detach().flatten() for tensor in parameters.values()])
        """θ, shape (n,)."""
        self.num_images = num_images
        self._shapes = {name: tensor.shape for name, tensor in parameters.items()}
        self._losses = losses
        self._chunks = [slice(start, start + chunk) for start in range(0, num_images, chunk)]

    def loss(self, offset: Tensor) -> float:
        """Return L(θ + offset); ``offset`` has shape (n,)."""
        with torch.no_grad():
            at = self._moved(offset)
            return sum(float(self._sum(at, rows)) for rows in self._chunks) / self.num_images

    def gradient(self, offset: Tensor) -> tuple[float, Tensor]:
        """Return L and its gradient (n,), float64, at θ + offset (n,)."""
        at = self._moved(offset).requires_grad_()
        loss, gradient = 0.0, torch.zeros_like(at, dtype=torch.float64)
        for rows in self._chunks:
            part = self._sum(at, rows)
            loss += float(part.detach())
            gradient += torch.autograd.grad(part, at)[0]
        return loss / self.num_images, gradient / self.num_images

    def image_gradients(self) -> Iterator[Tensor]:
        """Yield the gradient (n,) of every single image's loss at θ."""
        at = self.point.clone().requires_grad_()
        for row in range(self.num_images):
            yield torch.autograd.grad(self._sum(at, slice(row, row + 1)), at)[0]

    def curvature(self, direction: Tensor) -> Tensor:
        """Return the Hessian of L at θ times a direction (n,): shape (n,), float64."""
        at = self.point.clone().requires_grad_()
        product = torch.zeros_like(at, dtype=torch.float64)
        for rows in self._chunks:
            (gradient,) = torch.autograd.grad(self._sum(at, rows), at, create_graph=True)
            product += torch.autograd.grad(gradient, at, direction.to(gradient))[0]
        return product / self.num_images

    def _moved(self, offset: Tensor) -> Tensor:
        return (self.point.double() + offset.to(self.point.device)).to(self.point.dtype)

    def _sum(self, at: Tensor, rows: slice) -> Tensor:
        """Return the sum of some rows' losses, float64, at parameters (n,)."""
        pieces = at.split([shape.numel() for shape in self._shapes.values()])
        shapes = self._shapes.items()
        named = {
            name: piece.view(shape) for (name, shape), piece in zip(shapes, pieces, strict=True)
        }
        return self._losses(named, rows).double().sum()


def fisher(surface: LossSurface) -> float:
    """Mean squared gradient of single images' losses, 1/(nN) Σᵢ‖∇ℓᵢ‖², for the true labels.

    This is the mean of the empirical Fisher matrix's diagonal. The gradient of a batch's mean loss
    would be smaller, as the images' gradients cancel out.
    """
    total = sum(float(gradient.double().square().sum()) for gradient in surface.image_gradients())
    return total / (surface.num_images * len(surface.point))


def adversarial_sharpness(
    surface: LossSurface, radius: float, steps: int, draws: torch.Generator
) -> float:
    """Largest rise of the loss near θ: max over ‖ε‖₂ ≤ r of L(θ + ε) − L(θ), at least 0.

    Gradient ascent from ε = 0: each step moves r/2 along the gradient's direction and is projected
    into the ball. The best step counts.

    Args:
        surface: the loss.
        radius: r > 0. Higher: a larger value.
        steps: of the ascent. More: closer to the maximum, and slower.
        draws: of the direction where the gradient is 0.
    """
    offset = torch.zeros_like(surface.point, dtype=torch.float64)
    start, gradient = surface.gradient(offset)
    highest = start
    for step in range(steps):
        if not bool(gradient.any()):
            gradient = torch.randn(len(offset), generator=draws, dtype=torch.float64).to(offset)
        offset = offset + radius / 2 * gradient / gradient.norm()
        offset = offset * torch.clamp(radius / offset.norm(), max=1)
        if step + 1 < steps:
            loss, gradient = surface.gradient(offset)
        else:
            loss = surface.loss(offset)
        highest = max(highest, loss)
    return highest - start


def expected_sharpness(surface: LossSurface, noises: Iterable[Tensor]) -> tuple[float, float]:
    """Mean rise of the loss under noise, E[L(θ + ε)] − L(θ), from pairs ±ε.

    Pairs cancel the gradient's share, which is 0 on average and large in a single draw.

    Args:
        surface: the loss.
        noises: ε of each pair, shape (n,); at least two.

    Returns:
        The mean and its standard error.
    """
    start = surface.loss(torch.zeros_like(surface.point))
    rises = [(surface.loss(e) + surface.loss(-e)) / 2 - start for e in noises]
    return fmean(rises), stdev(rises) / math.sqrt(len(rises))


def normal_noises(
    size: int, deviation: float, count: int, draws: torch.Generator
) -> Iterator[Tensor]:
    """Draw normal noises (n,), float64, with mean 0.

    Args:
        size: n.
        deviation: s of every element. Higher: larger noises.
        count: how many.
        draws: a CPU generator.
    """
    for _ in range(count):
        yield deviation * torch.randn(size, generator=draws, dtype=torch.float64)


def spectral_radius(
    product: Callable[[Tensor], Tensor], start: Tensor, most: int, tolerance: float
) -> float:
    """Largest |eigenvalue| of a symmetric matrix H by power iteration: ‖Hv‖ for unit vectors v.

    ‖Hv‖ rises to it even where eigenvalues λ and −λ are both largest; v·Hv would not.

    Args:
        product: maps v (n,) to Hv (n,).
        start: (n,), not 0; drawn at random, so that it has a share of every eigenvector.
        most: products at most, at least 1. More: closer to the radius, and slower.
        tolerance: relative change, after five products, at which they end. Higher: less exact.
    """
    value, direction = 0.0, start / start.norm()
    for number in range(1, most + 1):
        image = product(direction)
        before, value = value, float(image.norm())
        if value == 0.0 or (number >= 5 and abs(value - before) <= tolerance * value):
            break
        direction = image / value
    return value


def weight_norm(surface: LossSurface) -> float:
    """Length of all parameters together, ‖θ‖₂."""
    return float(surface.point.double().norm())


def measure(
    surface: LossSurface, settings: MeasureSettings, draws: Callable[[str], torch.Generator]
) -> dict[str, float]:
    """Compute the chosen measures of a loss surface; the effective rank is not one of them.

    Args:
        surface: the loss around the last backbone's weights.
        settings: which measures, and how exactly.
        draws: makes the CPU generator of a measure from its name.

    Returns:
        Values by name; ``expected_sharpness_error`` beside ``expected_sharpness``.
    """
    size, found = len(surface.point), dict[str, float]()
    for name in settings.measures:
        if name == "fisher":
            found[name] = fisher(surface)
        elif name == "adversarial_sharpness":
            radius, steps = settings.adversarial_radius, settings.adversarial_steps
            found[name] = adversarial_sharpness(surface, radius, steps, draws(name))
        elif name == "expected_sharpness":
            deviation, pairs = settings.expected_deviation, settings.expected_pairs
            noises = normal_noises(size, deviation, pairs, draws(name))
            found[name], found[f"{name}_error"] = expected_sharpness(surface, noises)
        elif name == "hessian_radius":
            (start,) = normal_noises(size, 1.0, 1, draws(name))
            most, tolerance = settings.hessian_products, settings.hessian_tolerance
            start = start.to(surface.point.device)
            found[name] = spectral_radius(surface.curvature, start, most, tolerance)
        elif name == "weight_norm":
            found[name] = weight_norm(surface)
    return found
