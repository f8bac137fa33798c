"""The learner: a method with its network, memory and class names, updated task by task."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from grace.configs.experiment import ExperimentSettings
from grace.configs.registry import resolve
from grace.data.augmentation import build_augmentation
from grace.data.images import Images, LabelledImages, TensorImages
from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.engine.progress import Progress
from grace.engine.trainer import Trainer, WorkDone
from grace.learner.evaluation import scores
from grace.methods.base import Method, Outcome, Workshop


@final
@dataclass(frozen=True)
class Update:
    """What one update did: the method's outcome and the work it cost."""

    task: int
    new_class_names: Sequence[str]
    outcome: Outcome
    work: Sequence[WorkDone]


@final
@dataclass(frozen=True)
class Size:
    """What a learner's network holds; exemplars are not counted."""

    num_backbones: int = 0
    backbone_parameters: int = 0
    head_parameters: int = 0
    weight_bytes: int = 0
    """Weights and buffers."""


@final
class Learner:
    """A classifier that learns new classes from their images alone.

    Args:
        settings: method, backbone, memory, augmentation, seeds, engine; the scenario is not used.
        shape: (C, H, W) of every image.
        mean: normalisation constants per channel, of pixels in [0, 1].
        std: likewise.
        progress: told what happens.

    Example:
        >>> learner = Learner(settings, (3, 32, 32), mean, std)  # doctest: +SKIP
        >>> learner.update(images, ["cat", "dog", ...])
        >>> learner.predict(images)
    """

    def __init__(
        self,
        settings: ExperimentSettings,
        shape: tuple[int, int, int],
        mean: Sequence[float],
        std: Sequence[float],
        progress: Progress | None = None,
    ) -> None:
        self.settings = settings
        self.shape = shape
        self.class_names: list[str] = []
        self.history: list[Update] = []
        if settings.data.augmentation == "imagenet" and shape[1] != shape[2]:
            raise ValueError(
                "data.augmentation=imagenet crops squares, but the images are "
                f"{shape[2]}×{shape[1]} pixels: set data.image_size"
            )
        augmentation = build_augmentation(
            settings.data.augmentation, tuple(mean), tuple(std), shape[1]
        )
        self.trainer = Trainer(settings.engine, augmentation, settings.seeds.data, progress)
        build: type[Method[Any]] = resolve("method", settings.method.name)
        memory = ExemplarMemory(settings.memory, keep_all=build.keeps_all_images)
        workshop = Workshop(settings, shape[0], self.trainer.device)
        workshop.refuse_unfit_backbone(shape)
        self.method: Method[Any] = build(settings.method, workshop, memory)

    def update(
        self,
        images: Images | Tensor | np.ndarray[Any, Any],
        labels: Sequence[str],
        *,
        is_last: bool = False,
    ) -> Update:
        """Learn images of new classes, and fresh images of known ones.

        New classes get the next indices in order of first appearance. When anything fails, the
        learner stays as it was.

        Args:
            images: uint8, (N, C, H, W).
            labels: N class names.
            is_last: whether the stream is known to end here (joint training waits for it).

        Returns:
            What was decided and what it cost.

        Raises:
            ValueError: for images of another shape, too few classes, a memory too small, or a
                loss that is not finite.
        """
        task = self._task(_as_images(images), labels, is_last)
        self.check_memory(task.num_classes)
        names = list(dict.fromkeys(str(name) for name in labels))
        self.trainer.start_task(task.number)
        backup = self._backup()
        try:
            self.method.memory.record_originals(task.data.labels)
            outcome = self._carry_out(task)
        except BaseException:
            self.method = backup
            raise
        new_names = [name for name in names if name not in self.class_names]
        self.class_names.extend(new_names)
        update = Update(task.number, new_names, outcome, tuple(self.trainer.work))
        self.history.append(update)
        return update

    def check_memory(self, num_classes: int) -> None:
        """Refuse a memory that cannot hold one exemplar of each of ``num_classes`` classes."""
        if self.method.uses_memory:
            self.method.memory.quota(num_classes)

    def size(self) -> Size:
        """Count the network's backbones, parameters and bytes; all 0 before the first update."""
        if not self.method.classifiers():
            return Size()
        network = self.method.network
        counts = network.num_parameters()
        return Size(len(network.backbones), counts.backbones, counts.heads, network.num_bytes())

    def scores(self, images: Images | Tensor | np.ndarray[Any, Any]) -> dict[str, Tensor]:
        """Score images with every predictor: (N, K) by name, the primary predictor first."""
        data = _as_images(images)
        self._check_shape(data)
        unknown = torch.zeros(len(data), dtype=torch.int64)
        return scores(self.trainer, dict(self.method.classifiers()), LabelledImages(data, unknown))

    def predict_proba(self, images: Images | Tensor | np.ndarray[Any, Any]) -> Tensor:
        """Give class probabilities (N, K) by the primary predictor's softmax.

        Raises:
            ValueError: before the first update.
        """
        by_name = self.scores(images)
        if not by_name:
            raise ValueError("nothing has been learnt yet: call update first")
        return next(iter(by_name.values())).softmax(dim=1)

    def predict(self, images: Images | Tensor | np.ndarray[Any, Any]) -> list[str]:
        """Name the class of each image."""
        return [self.class_names[int(i)] for i in self.predict_proba(images).argmax(dim=1)]

    def score(self, images: Images | Tensor | np.ndarray[Any, Any], labels: Sequence[str]) -> float:
        """Share of the images that are given their label, in [0, 1]."""
        predictions = self.predict(images)
        if len(predictions) != len(labels):
            raise ValueError(f"{len(predictions)} images but {len(labels)} labels: give one each")
        right = sum(p == str(label) for p, label in zip(predictions, labels, strict=True))
        return right / len(labels)

    def _task(self, images: Images, labels: Sequence[str], is_last: bool) -> Task:
        if len(images) != len(labels):
            raise ValueError(f"{len(images)} images but {len(labels)} labels: give one label each")
        self._check_shape(images)
        num_old = len(self.class_names)
        index = {name: i for i, name in enumerate(self.class_names)}
        for name in labels:
            index.setdefault(str(name), len(index))
        if not self.history and len(index) < 2:
            raise ValueError("the first update needs images of at least two classes")
        indices = torch.tensor([index[str(name)] for name in labels], dtype=torch.int64)
        return Task(
            number=len(self.history) + 1,
            data=LabelledImages(images, indices),
            new_classes=range(num_old, len(index)),
            num_old_classes=num_old,
            num_classes=len(index),
            is_last=is_last,
        )

    def _check_shape(self, images: Images) -> None:
        if len(images) == 0:
            raise ValueError("no images were given")
        if images.shape != self.shape:
            raise ValueError(
                f"images have shape {images.shape}, this learner takes {self.shape} "
                "(channels, height, width): resize or convert them"
            )

    def _carry_out(self, task: Task) -> Outcome:
        steps = self.method.learn(task)
        result: Any = None
        while True:
            try:
                result = self.trainer.run(steps.send(result))
            except StopIteration as stop:
                outcome: Outcome = stop.value
                return outcome

    def _backup(self) -> Method[Any]:
        # Exemplars and the workshop are shared with the copy: updates never write into them.
        method = self.method
        shared = {id(method.memory): method.memory.copy(), id(method.workshop): method.workshop}
        return copy.deepcopy(method, shared)


def _as_images(images: Images | Tensor | np.ndarray[Any, Any]) -> Images:
    if isinstance(images, Images):
        return images
    if isinstance(images, np.ndarray):
        images = torch.from_numpy(images)
    return TensorImages(images)
