"""Examine a folder of images for a learner, without learning anything."""

from pathlib import Path
from typing import Literal

import torch

from grace.configs.experiment import ExperimentSettings
from grace.data.doctor import Examination, examine
from grace.data.joined import concatenate
from grace.data.selection import pixel_keys
from grace.learner.estimate import Estimate, estimate
from grace.learner.learner import Learner


def examine_for(
    learner: Path | ExperimentSettings, images: Path
) -> tuple[Examination, Estimate | None]:
    """Find the problems of a folder of images, and estimate the cost of learning them.

    Args:
        learner: home of the learner that shall learn them, or the settings of a new learner.
        images: folder of images, as for ``learn``.

    Returns:
        What was found, and the estimate; no estimate (``None``) without training images.

    Raises:
        GraceError: if there is no such learner or folder.
    """
    if isinstance(learner, Path):
        made = Learner.load(learner)
        known_classes, known_images = made.class_names, _own_images(made)
    else:
        side = learner.data.image_size or 64
        made = Learner.create(learner, shape=(learner.data.channels or 3, side, side))
        known_classes, known_images = None, None
    depth, height, width = made.shape
    channels: Literal[1, 3] = 1 if depth == 1 else 3
    found = examine(
        images,
        known_classes=known_classes,
        known_images=known_images,
        channels=channels,
        image_size=height if height == width else None,
        max_pixels=made.settings.data.max_pixels,
    )
    num_train = sum(count.train for count in found.classes.values())
    num_new = sum(count.is_new is not False for count in found.classes.values())
    return found, estimate(made, num_new, num_train) if num_train else None


def _own_images(learner: Learner) -> dict[bytes, str]:
    """Return the class name of every image that a learner keeps, by the hash of its pixels."""
    parts = [learner.method.memory.data(), learner.held_out.data()]
    data = concatenate([part for part in parts if part is not None])
    if not len(data):
        return {}
    keys = pixel_keys(data.images.gather(torch.arange(len(data))))
    names = [learner.class_names[int(label)] for label in data.labels]
    return dict(zip(keys, names, strict=True))
