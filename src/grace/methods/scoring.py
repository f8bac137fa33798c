"""Scores and accuracies of a method's predictors on labelled images.

Shapes: N images, D features, K classes.
"""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor

from grace.base.errors import GraceError
from grace.data.images import LabelledImages, image_keys
from grace.engine.loss_meter import NonFiniteLossError
from grace.engine.parts import frozen
from grace.engine.phase import Parts, Sweep
from grace.engine.reducers import Collect
from grace.engine.trainer import Trainer
from grace.methods.classifier import Classifier
from grace.methods.feature_cache import FeatureCache


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
    trainer: Trainer,
    classifiers: dict[str, Classifier],
    data: LabelledImages,
    cache: FeatureCache | None = None,
) -> dict[str, Tensor]:
    """Score images with every predictor, computing shared features once.

    Args:
        trainer: carries out the passes.
        classifiers: predictors by name.
        data: N images.
        cache: remembers the features of these images, if the backbones never change.

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
        reducer = _Scores(group)
        if cache is None:
            trainer.sweep(Sweep(name="evaluate", parts=parts, data=data, reducer=reducer))
        else:
            for rows in _remembered(trainer, parts, data, cache).split(1000):
                reducer.update(rows.to(trainer.device.torch_device), data.labels)
        found |= reducer.result()
    return found


def _remembered(
    trainer: Trainer, parts: Parts, data: LabelledImages, cache: FeatureCache
) -> Tensor:
    """Return the features (N, D) of images; compute and remember those that are not known."""
    keys = image_keys(data.images)
    absent = cache.missing(keys)
    if len(absent):
        sweep = Sweep(name="evaluate", parts=parts, data=data.subset(absent), reducer=Collect())
        cache.add([keys[i] for i in absent.tolist()], trainer.sweep(sweep))
    return cache.rows(keys)


def accuracy(
    trainer: Trainer,
    classifier: Classifier,
    data: LabelledImages | None,
    cache: FeatureCache | None = None,
) -> float | None:
    """Return the share of images that a predictor classifies correctly, in [0, 1].

    Args:
        trainer: carries out the passes.
        classifier: the predictor.
        data: images with their labels; ``None``: the result is ``None`` too.
        cache: see ``scores``.
    """
    if data is None:
        return None
    found = scores(trainer, {"": classifier}, data, cache)[""]
    return float((found.argmax(dim=1) == data.labels).double().mean())


def finite(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return features (N, D) or scores (N, K) by name; refuse any that are not finite."""
    if not all(bool(values.isfinite().all()) for values in found.values()):
        raise GraceError("the scores are not finite: the weights are damaged")
    return found


def refuse_diverged(
    trainer: Trainer,
    classifiers: Mapping[str, Classifier],
    data: LabelledImages,
    cache: FeatureCache | None = None,
) -> None:
    """Refuse a network whose scores overflow, though its weights and losses are finite.

    Args:
        trainer: has trained it.
        classifiers: predictors by name, the primary one first.
        data: a few training images are enough.
        cache: see ``scores``.

    Raises:
        NonFiniteLossError: naming the last phase that trained.
    """
    trained = [work for work in trainer.work if work.epochs]
    if not trained or not classifiers:
        return
    few = data.subset(torch.arange(min(16, len(data))))
    primary = next(iter(classifiers.values()))
    if not bool(scores(trainer, {"": primary}, few, cache)[""].isfinite().all()):
        raise NonFiniteLossError(f"scores are not finite after {trained[-1].end}", trained[-1].name)
