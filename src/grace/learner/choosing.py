"""Choose the predictor that a learner answers with, and calibrate it, on held-out images.

A learner compares its method's predictors after every update: those that use the same backbones as
the primary one, and for a linear head trained on unequal numbers of images without a class prior
also this head corrected by the prior (Menon et al., "Long-tail learning via logit adjustment", ICLR
2021, post-hoc with τ = 1). The one in use is replaced only if the paired test shows that another
one is better.

Shapes: N images, B a batch of them, D features, K classes.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from grace.learner.document import Predictor
from grace.learner.gate import LEVEL, calibration_error, sign_test
from grace.methods.classification import corrects_shares
from grace.methods.classifier import Classifier
from grace.methods.method import Method
from grace.nn.heads import MASKED, LinearHead
from grace.nn.losses.balance import log_prior

FEWEST = 50
"""Fewest held-out images by which a predictor is chosen or a temperature fitted."""


def classifier_of(method: Method, predictor: Predictor) -> Classifier:
    """Return the classifier that a predictor describes.

    Args:
        method: a method that has learnt something.
        predictor: the choice; a name that the method does not have stands for the primary one.
    """
    found = method.classifiers()
    own = found.get(predictor.classifier) or next(iter(found.values()))
    if not predictor.prior and predictor.temperature == 1:
        return own
    return Classifier(own.backbones, _calibrated(own.score, predictor))


def candidates(method: Method, counts: Sequence[int]) -> list[Predictor]:
    """List the predictors of a method that a learner can choose from, the primary one first.

    Args:
        method: a method that has learnt something.
        counts: training images of each class in the last phase; without them nothing is corrected.
    """
    found = method.classifiers()
    primary = next(iter(found.values()))
    same = [
        name
        for name, own in found.items()
        if list(map(id, own.backbones)) == list(map(id, primary.backbones))
    ]
    listed = [Predictor(classifier=name) for name in same]
    if "linear" in same and _is_uneven(method, counts):
        listed.append(Predictor(classifier="linear", prior=tuple(counts)))
    return listed


def choose(
    in_use: Predictor, scores: Mapping[Predictor, Tensor], labels: Tensor, level: float = LEVEL
) -> Predictor:
    """Return the predictor to answer with from now on, not calibrated yet.

    The best of the others replaces the one in use only if it is right for more images and the
    paired test shows it, at ``level`` divided by the number of others: otherwise the choice would
    flip by chance from update to update.

    Args:
        in_use: the predictor of the last update. Its prior is not compared: each update has its
            own.
        scores: (N, K) of each candidate, the primary one first; fewer than 50 images change
            nothing.
        labels: class indices (N,).
        level: of the test. Higher: it changes more easily.
    """
    right = {own: scores[own].argmax(dim=1) == labels for own in scores}
    same = [own for own in scores if _kind(own) == _kind(in_use)]
    present = same[0] if same else next(iter(scores))
    best = max(right, key=lambda own: (int(right[own].sum()), own == present))
    won = int((right[best] & ~right[present]).sum())
    lost = int((right[present] & ~right[best]).sum())
    is_shown = won > lost and sign_test(won, lost) <= level / max(1, len(scores) - 1)
    return best if is_shown and len(labels) >= FEWEST else present


def calibrated(predictor: Predictor, scores: Tensor, labels: Tensor) -> Predictor:
    """Return a predictor with its temperature, and the calibration error before and after.

    Args:
        predictor: without a temperature.
        scores: its scores (N, K) of held-out images; fewer than 50 images change nothing.
        labels: class indices (N,).
    """
    if len(labels) < FEWEST:
        return predictor
    temperature = fit_temperature(scores, labels)
    errors = (_error(scores, labels), _error(scores / temperature, labels))
    return predictor.model_copy(update={"temperature": temperature, "calibration_error": errors})


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


def _calibrated(score: Callable[[Tensor], Tensor], predictor: Predictor) -> Callable[..., Tensor]:
    shift = log_prior(torch.tensor(predictor.prior)) if predictor.prior else torch.zeros(())

    def calibrated_score(features: Tensor) -> Tensor:
        """Map features (B, D) to scores (B, K); masked classes stay masked."""
        raw = score(features)
        changed = (raw.float() - shift.to(raw.device)) / predictor.temperature
        return changed.masked_fill(raw <= MASKED, MASKED)

    return calibrated_score


def _is_uneven(method: Method, counts: Sequence[int]) -> bool:
    """Return ``True`` if the last phase's counts can have biased a plain linear head."""
    if not isinstance(method.network.head, LinearHead):
        return False
    if corrects_shares(method.settings):
        return False
    masked = method.network.head.masked
    return len({count for index, count in enumerate(counts) if index not in masked}) > 1


def _kind(predictor: Predictor) -> tuple[str, bool]:
    return predictor.classifier, bool(predictor.prior)


def _error(scores: Tensor, labels: Tensor) -> float:
    sure = scores.double().softmax(dim=1).max(dim=1)
    are_right: list[bool] = (sure.indices == labels).tolist()
    return min(1.0, round(calibration_error(sure.values.tolist(), are_right), 6))
