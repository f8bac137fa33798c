"""Scores and accuracies of a learner's predictors on labelled images."""

from typing import final

import torch
from torch import Tensor

from grace.data.images import LabelledImages
from grace.engine.parts import frozen
from grace.engine.phase import Sweep
from grace.engine.trainer import Trainer
from grace.methods.classifier import Classifier


@final
class _Scores:
    """Collects the scores (N, K) of predictors that share the same backbones, on the CPU."""

    def __init__(self, classifiers: dict[str, Classifier]) -> None:
        self._classifiers = classifiers
        self._scores: dict[str, list[Tensor]] = {name: [] for name in classifiers}

    def update(self, outputs: Tensor, labels: Tensor) -> None:
        """Score one batch of features (B, D)."""
        for name, classifier in self._classifiers.items():
            self._scores[name].append(classifier.score(outputs).float().cpu())

    def result(self) -> dict[str, Tensor]:
        """Return the scores (N, K) of every predictor, by name."""
        return {name: torch.cat(scores) for name, scores in self._scores.items()}


def scores(
    trainer: Trainer, classifiers: dict[str, Classifier], data: LabelledImages
) -> dict[str, Tensor]:
    """Score images with every predictor, computing shared features once.

    Args:
        trainer: carries out the passes.
        classifiers: predictors by name.
        data: N images.

    Returns:
        Scores (N, K) by name, on the CPU; logits for a linear head.
    """
    groups: dict[tuple[int, ...], dict[str, Classifier]] = {}
    for name, classifier in classifiers.items():
        key = tuple(id(backbone) for backbone in classifier.backbones)
        groups.setdefault(key, {})[name] = classifier
    found: dict[str, Tensor] = {}
    for group in groups.values():
        group_backbones = next(iter(group.values())).backbones
        parts = frozen(group_backbones)
        sweep = Sweep(name="evaluate", parts=parts, data=data, reducer=_Scores(group))
        found |= trainer.sweep(sweep)
    return found


def accuracy(trainer: Trainer, classifier: Classifier, data: LabelledImages | None) -> float | None:
    """Return the share of images that a predictor classifies correctly, in [0, 1].

    Args:
        trainer: carries out the passes.
        classifier: the predictor.
        data: images with their labels; ``None``: the result is ``None`` too.
    """
    if data is None:
        return None
    found = scores(trainer, {"": classifier}, data)[""]
    return float((found.argmax(dim=1) == data.labels).double().mean())
