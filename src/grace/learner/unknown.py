"""Recognise images that are unlike anything learnt, at a stated rate of false alarms.

Every image gets a familiarity; an image is unknown below a limit that few held-out images of learnt
classes fall below. Familiarity is "energy+mahalanobis": the energy of the logits and the distance
of the features from the closest class of the exemplars, added in units of their deviation on the
held-out images. Without exemplars of three classes, with few held-out images, or without room for
its tensors, it is "energy" alone. Of ten scores that were measured, this sum finds most on networks
that were trained on their classes and on frozen ones alike (docs/learner/unknown.md).

Shapes: n held-out images, N images, M exemplars, D features, K classes, C of them with exemplars,
r directions.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.data.memory import normalise_features
from grace.learner.document import ScoreName
from grace.learner.prediction import cutoff

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
    # The smaller of the two matrices has the same variances.
    if num <= width:
        values, vectors = torch.linalg.eigh(residuals @ residuals.T / num)
    else:
        values, vectors = torch.linalg.eigh(residuals.T @ residuals / num)
    count = min(NUM_DIRECTIONS, len(values), width - 1)
    values = values.flip(0)[:count].clamp(min=0)
    vectors = vectors.flip(1)[:, :count]
    axes = (residuals.T @ vectors if num <= width else vectors).T
    total = (residuals**2).sum() / num
    rest = (total - values.sum()).clamp(min=0) / max(1, width - count)
    mean = total / width
    variances = (1 - SHRINKAGE) * values + SHRINKAGE * mean
    smallest = (1 - SHRINKAGE) * rest + SHRINKAGE * mean
    shares = (1 - smallest / variances.clamp(min=1e-12)).clamp(min=0)
    found: Tensor = nn.functional.normalize(axes, dim=1) * shares.sqrt()[:, None]
    return found


def most_score_bytes(width: int, num_classes: int) -> int:
    """Return the most bytes of a score's tensors, for D features and C classes."""
    return 4 * (width * (1 + num_classes + min(NUM_DIRECTIONS, width)) + 4)


@final
class UnknownScore(nn.Module):
    """A score of familiarity with all that it needs, so that it can be saved and exported.

    Args:
        tensors: ``centre``, ``means`` and ``axes`` of ``mahalanobis``, and ``scales`` (2, 2): mean
            and deviation of both parts; none: the score is energy.
    """

    scales: Tensor

    def __init__(self, tensors: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        self.name: ScoreName = "energy+mahalanobis" if tensors else "energy"
        for key, tensor in (tensors or {}).items():
            self.register_buffer(key, tensor)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors, as they are saved."""
        return dict(self.named_buffers())

    @classmethod
    def fitted(cls, exemplars: Seen, held_out: Seen) -> "UnknownScore":
        """Make the sum of both parts, in units of their deviation on held-out images."""
        labels = exemplars.labels
        members = [labels == own for own in labels.unique().tolist()]
        plain = normalise_features(exemplars.features.float())
        centre = torch.stack([plain[own].mean(dim=0) for own in members]).mean(dim=0)
        found = directions_of(exemplars.features, centre)
        means = torch.stack([found[own].mean(dim=0) for own in members])
        places = torch.searchsorted(labels.unique(), labels)
        own = {"centre": centre, "means": means, "axes": shrunk_axes(found - means[places])}
        parts = torch.stack([energy(held_out.logits), mahalanobis(held_out.features, **own)])
        deviations = parts.std(dim=1).clamp(min=1e-6)
        return cls({**own, "scales": torch.stack([parts.mean(dim=1), deviations], dim=1)})

    @override
    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """Map features (N, D) and logits (N, K) of images to their familiarity (N,)."""
        if self.name == "energy":
            return energy(logits)
        own = {key: tensor for key, tensor in self.tensors.items() if key != "scales"}
        parts = torch.stack([energy(logits), mahalanobis(features, **own)], dim=1)
        found: Tensor = ((parts - self.scales[:, 0]) / self.scales[:, 1]).sum(dim=1)
        return found


@final
@dataclass(frozen=True)
class Recogniser:
    """How a learner recognises unknown images.

    Args:
        score: of familiarity.
        familiarities: of the held-out images (n,), ascending.
    """

    score: UnknownScore = field(default_factory=UnknownScore)
    familiarities: Tensor = field(default_factory=lambda: torch.empty(0))

    def cutoff(self, false_alarms: float) -> float:
        """Return the familiarity below which an image is unknown; see ``prediction.cutoff``."""
        return cutoff(self.familiarities, false_alarms)

    def limits(self, rates: Sequence[float] = (0.01, 0.02, 0.05, 0.1)) -> dict[str, float]:
        """Return the limit of each rate of false alarms that the held-out images allow."""
        enough = [rate for rate in rates if rate * (len(self.familiarities) + 1) >= 1]
        return {f"{rate:g}": self.cutoff(rate) for rate in enough}

    def metadata(self) -> dict[str, str]:
        """Return what an exported file says of unknown images."""
        limits, familiarities = self.limits(), self.familiarities.tolist()
        numbers = {"unknown_below": json.dumps(limits), "familiarities": json.dumps(familiarities)}
        return {"unknown_score": self.score.name, **numbers}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors, as they are saved; empty before there are held-out images."""
        if not len(self.familiarities):
            return {}
        return {"familiarities": self.familiarities, **self.score.tensors}


def recogniser(
    exemplars: Seen | None,
    held_out: Seen,
    most_bytes: float = math.inf,
    name: ScoreName = "energy+mahalanobis",
) -> Recogniser:
    """Fit the score of familiarity and calibrate it.

    Args:
        exemplars: of all classes; ``None``: there are none.
        held_out: images that were not trained on.
        most_bytes: of the score's tensors.
        name: of the score, if it can be fitted; otherwise it is "energy".
    """
    score = UnknownScore()
    if name != score.name and exemplars is not None and _can_compare(exemplars, held_out):
        sum_of_both = UnknownScore.fitted(exemplars, held_out)
        if sum(tensor.nbytes for tensor in sum_of_both.tensors.values()) <= most_bytes:
            score = sum_of_both
    return Recogniser(score, score(held_out.features, held_out.logits).sort().values)


def _can_compare(exemplars: Seen, held_out: Seen) -> bool:
    known = set(exemplars.labels.tolist())
    is_enough = len(known) >= FEWEST_CLASSES and len(held_out.labels) >= FEWEST_HELD_OUT
    return is_enough and set(held_out.labels.tolist()) <= known


def recogniser_of(tensors: Mapping[str, Tensor]) -> Recogniser:
    """Make a recogniser from saved tensors; see ``Recogniser.tensors``."""
    own = {key: value for key, value in tensors.items() if key != "familiarities"}
    return Recogniser(UnknownScore(own), tensors["familiarities"])


def problem_of(name: ScoreName, tensors: Mapping[str, Tensor], width: int) -> str | None:
    """Say why saved tensors are not those of a recogniser; ``None`` if they are.

    Args:
        name: of its score.
        tensors: as they were read, possibly from a stranger.
        width: D, of the network's features.
    """
    own = dict(tensors)
    values = own.pop("familiarities", torch.zeros(()))
    are_numbers = values.dtype == torch.float32 and not bool(values.isnan().any())
    if values.ndim != 1 or not len(values) or not are_numbers:
        return "it holds no scores"
    sizes = {"centre": (width,), "means": (-1, width), "axes": (-1, width), "scales": (2, 2)}
    fits = own.keys() == (set() if name == "energy" else sizes.keys()) and all(
        tensor.dtype == torch.float32
        and tensor.numel() > 0
        and bool(tensor.isfinite().all())
        and tensor.ndim == len(sizes[key])
        and tensor.shape[-1] == sizes[key][-1]
        and sizes[key][0] in (-1, len(tensor))
        for key, tensor in own.items()
    )
    if not fits or (own and not bool((own["scales"][:, 1] > 0).all())):
        return f"it does not hold what the score '{name}' needs"
    return None
