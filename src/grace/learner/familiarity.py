"""Scores of how much an image looks like something learnt: higher is more familiar.

Logits alone give three of them, the network's features four more, compared with those of the stored
exemplars; some of these are also added up in pairs. No score is best for all networks: a learner
chooses one on its held-out images (``unknown``).

Shapes: N images, M exemplars, D features, K classes, C of them with exemplars, r directions.
"""

from collections.abc import Callable, Mapping
from typing import final, get_args

import torch
from torch import Tensor, nn
from typing_extensions import override

from grace.data.memory import class_mean, normalise_features
from grace.learner.document import ScoreName

SCORES: tuple[ScoreName, ...] = get_args(ScoreName)
"""Names of all scores; energy is that of earlier versions."""
LOGIT_SCORES = {"energy", "max_logit", "max_probability"}
"""Scores that need no exemplars."""
SHRINKAGE = 0.7
"""Share of the covariance that is replaced by its mean variance in all directions."""
NUM_DIRECTIONS = 64
"""Most directions in which the covariance differs from this mean variance."""
NUM_NEAREST = 5
"""Exemplars that ``nearest`` averages over."""


def familiarity(scores: Tensor) -> Tensor:
    """Compute ``log Σ_k exp s_k``, (N, K) → (N,): the score "energy".

    The negative energy of Liu et al., "Energy-based Out-of-distribution Detection" (NeurIPS 2020),
    at temperature 1; masked classes add nothing.
    """
    return scores.float().logsumexp(dim=1)


def max_logit(scores: Tensor) -> Tensor:
    """Compute ``max_k s_k``, (N, K) → (N,); Hendrycks et al., ICML 2022."""
    return scores.float().amax(dim=1)


def max_probability(scores: Tensor) -> Tensor:
    """Compute ``log max_k softmax(s)_k``, (N, K) → (N,); Hendrycks and Gimpel, ICLR 2017."""
    return max_logit(scores) - familiarity(scores)


def cosine(features: Tensor, means: Tensor) -> Tensor:
    """Compute the cosine of the angle to the closest class mean.

    Args:
        features: (N, D).
        means: (C, D) class means of unit length.

    Returns:
        (N,) in [-1, 1].
    """
    return (normalise_features(features) @ means.T).amax(dim=1)


def nearest(features: Tensor, exemplars: Tensor) -> Tensor:
    """Compute the mean cosine to the five closest exemplars, a measure of their density.

    Args:
        features: (N, D).
        exemplars: (M, D) features of unit length.

    Returns:
        (N,) in [-1, 1].

    Reference:
        Sun et al., "Out-of-distribution detection with deep nearest neighbors", ICML 2022; their
        distance to the k-th one is noisier where there are few.
    """
    similarities = normalise_features(features) @ exemplars.float().T
    return similarities.topk(min(NUM_NEAREST, len(exemplars)), dim=1).values.mean(dim=1)


def directions_of(features: Tensor, centre: Tensor) -> Tensor:
    """Return the directions in which features lie from a centre: unit vectors (N, D)."""
    return normalise_features(normalise_features(features) - centre)


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
    return -_squares(found, means, axes).amin(dim=1)


def discriminant(features: Tensor, centre: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute how far the best class of a linear discriminant is above the mean class.

    It is half the difference of the mean and the smallest squared Mahalanobis distance, in which
    what is unusual for every class alike cancels (compare Ren et al., "A simple fix to Mahalanobis
    distance", 2021).

    Args:
        features: (N, D).
        centre: (D,); see ``directions_of``.
        weight: (C, D) of the classes.
        bias: (C,) of the classes.

    Returns:
        (N,), at least 0.
    """
    outputs = directions_of(features, centre) @ weight.T + bias
    return outputs.amax(dim=1) - outputs.mean(dim=1)


def _squares(found: Tensor, means: Tensor, axes: Tensor) -> Tensor:
    """Compute squared Mahalanobis distances (N, C) of directions (N, D) from class means."""
    plain = _euclidean(found, means) - _euclidean(found @ axes.T, means @ axes.T)
    return plain.clamp(min=0)


def _euclidean(rows: Tensor, others: Tensor) -> Tensor:
    squares = (rows**2).sum(dim=1, keepdim=True) + (others**2).sum(dim=1)
    return squares - 2 * rows @ others.T


@final
class Reference:
    """What the scores of features need to know of the exemplars.

    Args:
        features: (M, D) of the exemplars.
        labels: (M,) their classes; every class is one of the C.
    """

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        classes = labels.unique().tolist()
        self.exemplars = normalise_features(features)
        self.means = torch.stack([class_mean(features[labels == own]) for own in classes])
        plain = torch.stack([self.exemplars[labels == own].mean(dim=0) for own in classes])
        self.centre = plain.mean(dim=0)
        found = directions_of(features, self.centre)
        self.centred_means = torch.stack([found[labels == own].mean(dim=0) for own in classes])
        places = torch.searchsorted(torch.tensor(classes), labels)
        self.axes = shrunk_axes(found - self.centred_means[places])

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of one score, as its function names them."""
        if name == "cosine":
            return {"means": self.means}
        if name == "nearest":
            return {"exemplars": self.exemplars.half()}
        if name == "mahalanobis":
            return {"centre": self.centre, "means": self.centred_means, "axes": self.axes}
        if name == "discriminant":
            weight = self.centred_means - self.centred_means @ self.axes.T @ self.axes
            bias = -(weight * self.centred_means).sum(dim=1) / 2
            return {"centre": self.centre, "weight": weight, "bias": bias}
        return {}


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
    """Return the most bytes of the tensors of "energy+mahalanobis".

    They are a centre, the classes' means, the axes and four scales.

    Args:
        width: D.
        num_classes: C.
    """
    return 4 * (width * (1 + num_classes + min(NUM_DIRECTIONS, width)) + 4)


_OF_LOGITS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "energy": familiarity, "max_logit": max_logit, "max_probability": max_probability
}  # fmt: skip
_OF_FEATURES: Mapping[str, Callable[..., Tensor]] = {
    "cosine": cosine, "nearest": nearest, "mahalanobis": mahalanobis, "discriminant": discriminant
}  # fmt: skip

_DIMENSIONS: Mapping[str, Mapping[str, int]] = {
    "cosine": {"means": 2},
    "nearest": {"exemplars": 2},
    "mahalanobis": {"centre": 1, "means": 2, "axes": 2},
    "discriminant": {"centre": 1, "weight": 2, "bias": 1},
}
"""Number of dimensions of the tensors of each score of features."""


@final
class UnknownScore(nn.Module):
    """A score with all that it needs, so that it can be saved and exported.

    A sum of two scores adds them in units of their deviation on the held-out images.

    Args:
        name: one of ``SCORES``.
        tensors: by ``part.name``, and ``scales`` (2, 2) of a sum: mean and deviation of each part.
    """

    def __init__(self, name: str, tensors: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        assert name in SCORES
        self.name = name
        self.parts = name.split("+")
        self._names = sorted(tensors or {})
        for key, tensor in (tensors or {}).items():
            self.register_buffer(key.replace(".", "_"), tensor)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors, as they are saved."""
        return {name: self.get_buffer(name.replace(".", "_")) for name in self._names}

    @classmethod
    def fitted(
        cls, name: str, reference: Reference | None, features: Tensor, logits: Tensor
    ) -> "UnknownScore":
        """Make a score.

        Args:
            name: one of ``SCORES``.
            reference: of the exemplars; ``None`` is enough for scores of logits alone.
            features: (N, D) of the held-out images, which scale the parts of a sum.
            logits: (N, K) of the held-out images.
        """
        tensors = {
            f"{part}.{key}": tensor
            for part in name.split("+")
            for key, tensor in (reference.tensors(part) if reference else {}).items()
        }
        score = cls(name, tensors)
        if len(score.parts) == 1:
            return score
        found = torch.stack([score.part(part, features, logits) for part in score.parts])
        deviations = found.std(dim=1).clamp(min=1e-6)
        return cls(name, {**tensors, "scales": torch.stack([found.mean(dim=1), deviations], dim=1)})

    def part(self, name: str, features: Tensor, logits: Tensor) -> Tensor:
        """Compute the scores of N images by one part, before parts are scaled and added.

        Args:
            name: one of ``self.parts``.
            features: (N, D).
            logits: (N, K).

        Returns:
            (N,), higher for images like those that were learnt.
        """
        if name in _OF_LOGITS:
            return _OF_LOGITS[name](logits)
        own = {k.partition(".")[2]: t for k, t in self.tensors.items() if k.startswith(f"{name}.")}
        return _OF_FEATURES[name](features.float(), **own)

    @override
    def forward(self, features: Tensor, logits: Tensor) -> Tensor:
        """Map features (N, D) and logits (N, K) of images to their familiarity (N,)."""
        found = [self.part(part, features, logits) for part in self.parts]
        if len(found) == 1:
            return found[0]
        scales = self.tensors["scales"]
        return sum(
            ((own - scale[0]) / scale[1] for own, scale in zip(found, scales, strict=True)),
            start=torch.zeros_like(found[0]),
        )


def refitted_logits(
    features: Tensor, labels: Tensor, asked: Tensor, decay: float = 1e-3, steps: int = 200
) -> Tensor:
    """Fit a linear classifier to exemplars and return its logits of other images.

    Multinomial logistic regression on centred features, scaled to a mean length of 1. It answers
    what logits a network's head would give if it had never seen a class: merely dropping a class's
    logit flatters, as the other logits learnt to stay low for its images.

    Args:
        features: (M, D) of the exemplars.
        labels: (M,) their classes.
        asked: (N, D) of the other images.
        decay: weight of the penalty ½‖W‖². Higher: smaller logits.
        steps: of gradient descent with Nesterov's momentum. More: closer to the minimum.

    Returns:
        (N, C), classes ascending.
    """
    centre = features.mean(dim=0)
    scale = (features - centre).norm(dim=1).mean().clamp(min=1e-6)
    rows, others = (features - centre) / scale, (asked - centre) / scale
    classes, targets = labels.unique(return_inverse=True)
    wanted = nn.functional.one_hot(targets, len(classes)).float()
    # A feature of 1 stands for the bias. The weights are sums of exemplars: where these are fewer
    # than the features, the same steps are taken in their coefficients.
    rows, others = (nn.functional.pad(own, (0, 1), value=1.0) for own in (rows, others))
    length = 1 / ((rows**2).sum(dim=1).mean() / 2 + decay)
    is_wide = rows.shape[1] > len(rows)
    products = rows @ rows.T if is_wide else rows
    found = last = torch.zeros(products.shape[1], len(classes))
    for number in range(steps):
        ahead = found + number / (number + 3) * (found - last)
        errors = ((products @ ahead).softmax(dim=1) - wanted) / len(rows)
        gradient = errors if is_wide else rows.T @ errors
        last, found = found, ahead - length * (gradient + decay * ahead)
    logits: Tensor = others @ (rows.T @ found if is_wide else found)
    return logits


def fits(name: str, tensors: Mapping[str, Tensor], width: int) -> bool:
    """Return ``True`` if tensors that were read from a file can be those of a score.

    Args:
        name: one of ``SCORES``.
        tensors: as ``UnknownScore`` gets them.
        width: D, numbers of a feature vector.
    """
    parts = name.split("+")
    expected = {f"{part}.{key}" for part in parts for key in _DIMENSIONS.get(part, ())}
    if len(parts) > 1:
        expected.add("scales")
    if tensors.keys() != expected:
        return False
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        return False
    for part in parts:
        for key, num_dimensions in _DIMENSIONS.get(part, {}).items():
            tensor = tensors[f"{part}.{key}"]
            length = len(tensors["discriminant.weight"]) if key == "bias" else width
            if tensor.ndim != num_dimensions or tensor.shape[-1] != length or not len(tensor):
                return False
            if tensor.dtype != (torch.float16 if key == "exemplars" else torch.float32):
                return False
    scales = tensors.get("scales", torch.ones(2, 2))
    is_right = scales.shape == (2, 2) and scales.dtype == torch.float32
    return is_right and bool((scales[:, 1] > 0).all())
