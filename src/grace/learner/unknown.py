"""Recognise images that are unlike anything learnt, at a stated rate of false alarms.

A learner chooses its score by leave-one-class-out: a class's held-out images act as unknown for the
scores that are computed without its exemplars, its mean and its logit. A network that was itself
trained on the class still tells it apart better than a class that nobody has shown it, and scores
of features gain most by that. So the choice is free on frozen features only, and for other networks
the share found is a rough estimate, too high or too low.

Shapes: n held-out images, N images, M exemplars, D features, K classes.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from grace.learner.false_alarms import cutoff, found_share
from grace.learner.familiarity import (
    LOGIT_SCORES,
    SCORES,
    Reference,
    UnknownScore,
    fits,
    refitted_logits,
)

TRAINED_SCORES = ("energy+mahalanobis", "energy")
"""Scores among which a network chooses that was trained on its classes; the first one found most
images of unknown classes in what ``benchmarks/unknown.py`` measured, the second needs no bytes."""
RATE = 0.05
"""Share of false alarms at which scores are compared, and the default of what is asked."""
MOST_EXEMPLARS = 600
"""Most exemplars that are compared with, an equal number of each class."""
FEWEST_CLASSES = 3
"""With fewer classes, images are not compared with exemplars."""
MOST_LEFT_OUT = 10
"""Most classes that are left out, one after another."""


@final
@dataclass(frozen=True)
class Recogniser:
    """How a learner recognises unknown images.

    Args:
        score: the chosen score.
        familiarities: score of the held-out images (n,), ascending.
        left_out: for each held-out image of a class that was left out, the share of images of the
            other classes that are no more familiar (m,), ascending; empty: it was not measured.
    """

    score: UnknownScore = field(default_factory=lambda: UnknownScore("energy"))
    familiarities: Tensor = field(default_factory=lambda: torch.empty(0))
    left_out: Tensor = field(default_factory=lambda: torch.empty(0))

    def detection(self, false_alarms: float) -> float | None:
        """Estimate the share of images of unknown classes that are found, in [0, 1].

        Args:
            false_alarms: share of images of learnt classes that may be called unknown.

        Returns:
            ``None`` if it was not measured; see this module for how.
        """
        return found_share(self.left_out, false_alarms) if len(self.left_out) else None

    def cutoff(self, false_alarms: float) -> float:
        """Return the familiarity below which an image is unknown; see ``false_alarms.cutoff``."""
        return cutoff(self.familiarities, false_alarms)

    def limits(self, rates: Sequence[float] = (0.01, 0.02, 0.05, 0.1)) -> dict[str, float]:
        """Return the limit of each rate of false alarms that the held-out images allow."""
        enough = [rate for rate in rates if rate * (len(self.familiarities) + 1) >= 1]
        return {f"{rate:g}": self.cutoff(rate) for rate in enough}

    def metadata(self) -> dict[str, str]:
        """Return what an exported file says of unknown images."""
        numbers = {
            "unknown_below": self.limits(),
            "familiarities": self.familiarities.tolist(),
            "left_out": self.left_out.tolist(),
        }
        words = {"unknown_score": self.score.name}
        return {**words, **{key: json.dumps(own) for key, own in numbers.items()}}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its tensors, as they are saved; empty before there are held-out images."""
        if not len(self.familiarities):
            return {}
        own = {f"score.{name}": tensor for name, tensor in self.score.tensors.items()}
        left_out = {"left_out": self.left_out} if len(self.left_out) else {}
        return {"familiarities": self.familiarities, **left_out, **own}


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

    def subset(self, places: Tensor) -> "Seen":
        """Return some of the images, by a mask (n,) or indices."""
        return Seen(self.features[places], self.logits[places], self.labels[places])


def ranks(known: Tensor, asked: Tensor) -> Tensor:
    """Compute ``(1 + number of known ≤ s) / (n + 1)``: the least rate at which s is found.

    With ``cutoff`` an image of score s counts as unknown at rate a exactly if this is at most a.

    Args:
        known: scores (n,) of images of known classes.
        asked: scores (N,) of other images.

    Returns:
        (N,) in (0, 1].
    """
    below = torch.searchsorted(known.sort().values, asked, right=True)
    return (1 + below).float() / (len(known) + 1)


def recogniser(
    exemplars: Seen | None,
    held_out: Seen,
    most_bytes: float = math.inf,
    chosen: str | None = None,
    names: Sequence[str] = SCORES,
) -> Recogniser:
    """Choose a score by leave-one-class-out, and calibrate it.

    Args:
        exemplars: of all classes; ``None``: there are none, and the score is energy.
        held_out: images that were not trained on.
        most_bytes: of the score's tensors. More: scores that keep exemplars can be chosen.
        chosen: name of the score; ``None``: the best one is chosen, and what it finds is measured.
        names: of the scores to choose from, the first of equals; one of them needs no bytes.
    """
    name, reference, left_out = chosen or "energy", None, torch.empty(0)
    if exemplars is not None and len(exemplars.labels.unique()) >= FEWEST_CLASSES:
        reference = Reference(exemplars.features, exemplars.labels)
    found: Mapping[str, Tensor] = {}
    if exemplars is not None and chosen is None:
        found = left_out_ranks(exemplars, held_out, names)
    seen = held_out.features, held_out.logits
    if found:
        named = {own: UnknownScore.fitted(own, reference, *seen) for own in found}
        # Scores of logits need no bytes.
        fitting = [own for own in found if num_bytes(named[own]) <= max(0, most_bytes)]
        name = max(fitting, key=lambda own: found_share(found[own], RATE))
        left_out = found[name].sort().values
    needs_reference = not set(name.split("+")) <= LOGIT_SCORES
    score = UnknownScore.fitted(
        "energy" if needs_reference and reference is None else name, reference, *seen
    )
    return Recogniser(score, score(*seen).sort().values, left_out)


def left_out_ranks(
    exemplars: Seen, held_out: Seen, names: Sequence[str] = SCORES
) -> Mapping[str, Tensor]:
    """Leave out one class after another, and rank its held-out images among the others'.

    Args:
        exemplars: of all classes; equal numbers are best.
        held_out: images that were not trained on.
        names: scores to compute.

    Returns:
        (m,) by name; see ``ranks``. Empty if an image's class has no exemplars, there are fewer
        than three classes, or too few images for ``RATE``.
    """
    classes, counts = held_out.labels.unique(return_counts=True)
    known = set(exemplars.labels.tolist())
    if len(classes) < FEWEST_CLASSES or not set(classes.tolist()) <= known:
        return {}
    if RATE * (len(held_out.labels) - int(counts.max()) + 1) < 1:
        return {}
    every = -(-len(classes) // MOST_LEFT_OUT)
    found: dict[str, list[Tensor]] = {name: [] for name in names}
    for index in classes[::every].tolist():
        others = exemplars.subset(exemplars.labels != index)
        is_left = held_out.labels == index
        logits = refitted_logits(others.features, others.labels, held_out.features)
        reference = Reference(others.features, others.labels)
        for name in names:
            rest = held_out.features[~is_left], logits[~is_left]
            score = UnknownScore.fitted(name, reference, *rest)
            own = score(held_out.features, logits)
            found[name].append(ranks(own[~is_left], own[is_left]))
    return {name: torch.cat(parts) for name, parts in found.items()}


def num_bytes(score: UnknownScore) -> int:
    """Count the bytes of a score's tensors."""
    return sum(tensor.nbytes for tensor in score.tensors.values())


def recogniser_of(name: str, tensors: Mapping[str, Tensor]) -> Recogniser:
    """Make a recogniser from saved tensors; see ``Recogniser.tensors``."""
    own = {
        key.removeprefix("score."): value
        for key, value in tensors.items()
        if key.startswith("score.")
    }
    left_out = tensors.get("left_out", torch.empty(0))
    return Recogniser(UnknownScore(name, own), tensors["familiarities"], left_out)


def problem_of(name: str, tensors: Mapping[str, Tensor], width: int) -> str | None:
    """Say why saved tensors are not those of a recogniser; ``None`` if they are.

    Args:
        name: of its score.
        tensors: as they were read, possibly from a stranger.
        width: D, of the network's features.
    """
    rest = {key: value for key, value in tensors.items() if not key.startswith("score.")}
    own = {k.removeprefix("score."): v for k, v in tensors.items() if k.startswith("score.")}
    for key in ("familiarities", "left_out"):
        values = rest.pop(key, None)
        if values is None and key == "left_out":
            continue
        if values is None or values.ndim != 1 or values.dtype != torch.float32:
            return "it holds no scores"
        if bool(values.isnan().any()):
            return "it holds no scores"
    if rest or not fits(name, own, width):
        return f"it does not hold what the score '{name}' needs"
    return None
