"""What held-out images calibrate: how sure a learner is, and which images it calls unknown.

Probabilities are the softmax of the scores of the method's first predictor, divided by one
temperature. A learner does not choose among several predictors: the first one is what the method's
paper reports and what its runs record, and the few held-out images of a learner seldom show that
another one is better. Classes of unequal numbers are corrected in training, by ``class_prior``.

Every image gets a familiarity; an image is unknown below a limit that few held-out images of learnt
classes fall below. Familiarity is the energy of the logits and the distance of the features from
the closest class of the exemplars, added in units of their deviation on the held-out images.
Without exemplars of three classes, with few held-out images, or under a ceiling, where its tensors
would take the place of exemplars, it is the energy alone. Of ten scores that were measured, this
sum finds most on networks that were trained on their classes and on frozen ones alike
(docs/learner/unknown.md).

Shapes: n held-out images, N images, M exemplars, D features, K classes, C of them with exemplars,
r directions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self, final

import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.base.errors import DamagedError
from grace.data.memory import normalise_features
from grace.learner.gate import calibration_error
from grace.learner.prediction import cutoff
from grace.nn.heads import MASKED

FEWEST = 50
"""Fewest held-out images by which a temperature is fitted."""
SHRINKAGE = 0.7
"""Share of the covariance that is replaced by its mean variance in all directions."""
NUM_DIRECTIONS = 64
"""Most directions in which the covariance differs from this mean variance."""
MOST_EXEMPLARS = 600
"""Most exemplars that are compared with, an equal number of each class."""
FEWEST_CLASSES = 3
FEWEST_HELD_OUT = 20
"""With fewer classes or held-out images, features are not compared with those of exemplars."""


@final
@dataclass(frozen=True)
class Seen:
    """What a network makes of labelled images.

    Args:
        features: (n, D).
        logits: (n, K); those of forgotten classes are masked.
        labels: (n,) class indices.
    """

    features: Tensor
    logits: Tensor
    labels: Tensor


def divided(score: Callable[[Tensor], Tensor], temperature: float) -> Callable[[Tensor], Tensor]:
    """Return a score of features that is divided by a temperature; masked classes stay masked."""

    def divided_score(features: Tensor) -> Tensor:
        raw = score(features)
        return (raw.float() / temperature).masked_fill(raw <= MASKED, MASKED)

    return divided_score


def temperature_of(scores: Tensor, labels: Tensor) -> tuple[float, tuple[float, float] | None]:
    """Fit a temperature to the scores (n, K) of held-out images with class indices (n,).

    Returns:
        The temperature, and the calibration error before and after the division by it; 1 and
        ``None`` for fewer than 50 images.
    """
    if len(labels) < FEWEST:
        return 1.0, None
    temperature = fit_temperature(scores, labels)
    errors = []
    for divisor in (1.0, temperature):
        sure = (scores.double() / divisor).softmax(dim=1).max(dim=1)
        are_right = (sure.indices == labels).tolist()
        errors.append(min(1.0, round(calibration_error(sure.values.tolist(), are_right), 6)))
    return temperature, (errors[0], errors[1])


def fit_temperature(scores: Tensor, labels: Tensor) -> float:
    """Find the temperature T in [0.01, 100] that minimises the negative log-likelihood of s/T.

    The likelihood is convex in 1/T, whose place is found by bisection. Targets are smoothed by
    1/(N + 2) as in Platt's scaling, so that T stays moderate if all images are right.

    Args:
        scores: s (N, K); masked classes are left out.
        labels: class indices (N,).

    Reference:
        Guo et al., "On calibration of modern neural networks", ICML 2017, section 4.2.
    """
    logits, num = scores.double(), len(labels)
    live = logits > MASKED
    targets = torch.nn.functional.one_hot(labels, logits.shape[1]).double()
    smooth = live / live.sum(dim=1, keepdim=True)
    targets = targets + (smooth - targets) / (num + 2)
    logits = logits.masked_fill(~live, 0.0)
    low, high = -2.0, 2.0
    for _ in range(50):
        middle = (low + high) / 2
        shares = (logits * 10**middle).masked_fill(~live, -torch.inf).softmax(dim=1)
        # The derivative by 1/T: positive where 1/T is too large.
        slope = ((shares - targets) * logits).sum()
        low, high = (low, middle) if slope > 0 else (middle, high)
    return min(100.0, max(0.01, float(f"{10**-low:.6g}")))


def energy(logits: Tensor) -> Tensor:
    """Compute ``log Σ_k exp s_k``, (N, K) → (N,); masked classes add nothing.

    The negative energy of Liu et al., "Energy-based Out-of-distribution Detection" (NeurIPS 2020),
    at temperature 1.
    """
    return logits.float().logsumexp(dim=1)


def directions_of(features: Tensor, centre: Tensor) -> Tensor:
    """Return the directions in which features lie from a centre: unit vectors (N, D)."""
    return normalise_features(normalise_features(features.float()) - centre)


def mahalanobis(features: Tensor, centre: Tensor, means: Tensor, axes: Tensor) -> Tensor:
    """Compute minus the squared Mahalanobis distance to the closest class mean.

    The covariance within classes is shared by all (Lee et al., NeurIPS 2018), shrunk, and measured
    in units of its smallest variance σ²: ``d² = ‖x‖² − ‖axes·x‖²`` with ``x = v − μ_c``, where row
    i of ``axes`` is ``sqrt(1 − σ²/λ_i)`` times the direction of the variance λ_i.

    Args:
        features: (N, D).
        centre: (D,) mean of the classes' mean directions; see ``directions_of``.
        means: (C, D) class means of these directions.
        axes: (r, D).

    Returns:
        (N,), at most 0.
    """
    found = directions_of(features, centre)
    plain = _squares(found, means) - _squares(found @ axes.T, means @ axes.T)
    return -plain.clamp(min=0).amin(dim=1)


def _squares(rows: Tensor, others: Tensor) -> Tensor:
    squares = (rows**2).sum(dim=1, keepdim=True) + (others**2).sum(dim=1)
    return squares - 2 * rows @ others.T


def shrunk_axes(residuals: Tensor) -> Tensor:
    """Return the axes of a shrunk covariance, as ``mahalanobis`` uses them.

    With ``S = RᵀR/M`` and its mean variance ``t = tr S/D``, the covariance is ``(1 − s)·S + s·t·I``
    with s = 0.7, a fixed share that is good for few exemplars and many features (Ledoit and Wolf
    2004 give the form). All but its largest 64 variances are replaced by their mean σ².

    Args:
        residuals: R, (M, D), of mean 0 in every class.

    Returns:
        (r, D) with r ≤ 64; row i is the unit vector of variance λ_i times ``sqrt(1 − σ²/λ_i)``.
    """
    num, width = residuals.shape
    _, singular, directions = torch.linalg.svd(residuals, full_matrices=False)
    count = min(NUM_DIRECTIONS, len(singular), width - 1)
    values = singular[:count] ** 2 / num
    total = (residuals**2).sum() / num
    rest = (total - values.sum()).clamp(min=0) / max(1, width - count)
    mean = total / width
    variances = (1 - SHRINKAGE) * values + SHRINKAGE * mean
    smallest = (1 - SHRINKAGE) * rest + SHRINKAGE * mean
    shares = (1 - smallest / variances.clamp(min=1e-12)).clamp(min=0)
    found: Tensor = directions[:count] * shares.sqrt()[:, None]
    return found


@final
class Recogniser(nn.Module):
    """Says how familiar images look; a module, so that it can be exported.

    Args:
        tensors: ``familiarities`` of the held-out images (n,), ascending; and for the sum of both
            parts ``centre``, ``means`` and ``axes`` of ``mahalanobis``, and ``scales`` (2, 2), the
            mean and deviation of both parts; without these, familiarity is energy.
    """

    familiarities: Tensor

    def __init__(self, tensors: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        for key, tensor in {"familiarities": torch.empty(0), **(tensors or {})}.items():
            self.register_buffer(key, tensor)

    @classmethod
    def fitted(cls, exemplars: Seen | None, held_out: Seen) -> Self:
        """Fit the score and calibrate it.

        Args:
            exemplars: of all classes; ``None``: features are not compared with them.
            held_out: images that were not trained on.
        """
        both = {} if exemplars is None else _sum_of_both(exemplars, held_out)
        found = cls(both)(held_out.features, held_out.logits)
        return cls({**both, "familiarities": found.sort().values})

    @classmethod
    def saved(cls, tensors: Mapping[str, Tensor], width: int) -> Self:
        """Make one of saved tensors, which may be a stranger's.

        Args:
            tensors: as they were read; see ``tensors``.
            width: D, of the network's features.

        Raises:
            DamagedError: if they are not those of a recogniser.
        """
        sizes: dict[str, tuple[int | None, ...]] = {
            "familiarities": (None,),
            "centre": (width,),
            "means": (None, width),
            "axes": (None, width),
            "scales": (2, 2),
        }
        if tensors.keys() not in ({"familiarities"}, sizes.keys()) or not all(
            tensor.dtype == torch.float32
            and tensor.ndim == len(sizes[key])
            and all(own in (None, n) for own, n in zip(sizes[key], tensor.shape, strict=True))
            and tensor.numel() > 0
            and bool(tensor.isfinite().all())
            and (key != "scales" or bool((tensor[:, 1] > 0).all()))
            for key, tensor in tensors.items()
        ):
            raise DamagedError("the calibration is damaged: it is not that of a score")
        return cls(tensors)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors, as they are saved; empty before there are held-out images."""
        return dict(self.named_buffers()) if len(self.familiarities) else {}

    @override
    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """Map features (N, D) and logits (N, K) of images to their familiarity (N,)."""
        own = dict(self.named_buffers())
        del own["familiarities"]
        if not own:
            return energy(logits)
        scales = own.pop("scales")
        parts = torch.stack([energy(logits), mahalanobis(features, **own)], dim=1)
        found: Tensor = ((parts - scales[:, 0]) / scales[:, 1]).sum(dim=1)
        return found

    def cutoff(self, false_alarms: float) -> float:
        """Return the familiarity below which an image is unknown; see ``prediction.cutoff``."""
        return cutoff(self.familiarities, false_alarms)


def _sum_of_both(exemplars: Seen, held_out: Seen) -> dict[str, Tensor]:
    """Fit energy plus Mahalanobis distance; return nothing if there are too few images for it."""
    labels, known = exemplars.labels, exemplars.labels.unique()
    is_enough = len(known) >= FEWEST_CLASSES and len(held_out.labels) >= FEWEST_HELD_OUT
    if not is_enough or not bool(torch.isin(held_out.labels, known).all()):
        return {}
    members = [labels == own for own in known.tolist()]
    plain = normalise_features(exemplars.features.float())
    centre = torch.stack([plain[own].mean(dim=0) for own in members]).mean(dim=0)
    found = directions_of(exemplars.features, centre)
    means = torch.stack([found[own].mean(dim=0) for own in members])
    axes = shrunk_axes(found - means[torch.searchsorted(known, labels)])
    far = mahalanobis(held_out.features, centre, means, axes)
    parts = torch.stack([energy(held_out.logits), far])
    scales = torch.stack([parts.mean(dim=1), parts.std(dim=1).clamp(min=1e-6)], dim=1)
    return {"centre": centre, "means": means, "axes": axes, "scales": scales}
