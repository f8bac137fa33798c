"""Which images of a source are used: classes, limits per class, held-out share, duplicates."""

import hashlib
from collections import defaultdict
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from grace.base.errors import GraceError
from grace.base.randomness import generator
from grace.base.words import did_you_mean
from grace.data.images import Images
from grace.settings.experiment import DataSettings


def chosen_classes(class_names: Sequence[str], settings: DataSettings) -> list[int]:
    """Return the labels of the classes to use, in the source's order.

    Args:
        class_names: all names of the source, by label.
        settings: ``classes`` keeps these names; ``max_classes`` then keeps the first N.

    Raises:
        GraceError: for an unknown or repeated name, or more classes than there are.
    """
    chosen = list(range(len(class_names)))
    if settings.classes is not None:
        for name in settings.classes:
            if name not in class_names:
                raise GraceError(
                    f"data.classes names the unknown class '{name}'"
                    f"{did_you_mean(name, class_names)}"
                )
        wanted = set(settings.classes)
        if len(wanted) < len(settings.classes):
            raise GraceError("data.classes names a class twice", "list each once")
        chosen = [label for label in chosen if class_names[label] in wanted]
    if settings.max_classes is not None:
        if settings.max_classes > len(chosen):
            raise GraceError(
                f"data.max_classes {settings.max_classes} exceeds the {len(chosen)} classes of "
                "the source",
                "lower it",
            )
        chosen = chosen[: settings.max_classes]
    if len(chosen) < 2:
        raise GraceError(f"only {len(chosen)} class to learn", "give images of at least two")
    return chosen


def first_of_each(labels: Sequence[Hashable], limit: int | None) -> list[int]:
    """Return the positions of the first ``limit`` images of each class, in order."""
    seen: dict[Hashable, int] = defaultdict(int)
    kept: list[int] = []
    for position, label in enumerate(labels):
        seen[label] += 1
        if limit is None or seen[label] <= limit:
            kept.append(position)
    return kept


def held_out(
    labels: Sequence[int], class_names: Sequence[str], fraction: float, seed: int
) -> tuple[list[int], list[int]]:
    """Split images into training and test images, stratified by class.

    A class with n images has ``round(n · fraction)`` test images, at least one and not all. Each
    class has its own random generator, so that adding a class changes no other class.

    Args:
        labels: label of each image.
        class_names: names by label.
        fraction: share of test images, in (0, 1). Higher: fewer training images.
        seed: seed of the split.

    Returns:
        Positions of training and of test images, ascending.

    Raises:
        GraceError: if a class has only one image.
    """
    places: dict[int, list[int]] = defaultdict(list)
    for position, label in enumerate(labels):
        places[label].append(position)
    test: list[int] = []
    for label, own in places.items():
        name = class_names[label]
        if len(own) < 2:
            raise GraceError(
                f"class '{name}' has only one image, so that none can be held out for testing",
                "add images or give a test folder",
            )
        count = min(max(round(len(own) * fraction), 1), len(own) - 1)
        order = torch.randperm(len(own), generator=generator(seed, "split", name))
        test.extend(own[int(i)] for i in order[:count])
    tested = set(test)
    return [position for position in range(len(labels)) if position not in tested], sorted(test)


def pixel_keys(pixels: Tensor) -> list[bytes]:
    """Hash each image (N, C, H, W) uint8; equal images have equal keys."""
    return [hashlib.sha256(image).digest() for image in pixels.contiguous().cpu().numpy()]


def image_keys(images: Images) -> list[bytes]:
    """Return N hashes, one of each image: equal images have equal keys."""
    parts = torch.arange(len(images)).split(1000)
    return [key for part in parts for key in pixel_keys(images.gather(part))]
