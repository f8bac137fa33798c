"""Images that are held out for good: never trained on, they judge every update.

Shapes: N images, K classes.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import final

import torch

from grace.data.images import Images, LabelledImages, TensorImages
from grace.data.joined import concatenate
from grace.data.selection import pixel_keys
from grace.randomness import generator


def hold_out(labels: Sequence[str], wanted: Mapping[str, int], seed: int, number: int) -> list[int]:
    """Choose the images of an update that are held out.

    Of a class with n images, at most a fifth, but one of three: ``min(wanted, max(1, n // 5))``
    for n ≥ 3. Each class is drawn by its own generator.

    Args:
        labels: class name of each image.
        wanted: images wanted by class name; other classes give none.
        seed: seed of the draws.
        number: the update's number, so that later images of a class are drawn anew.

    Returns:
        Their positions, ascending.
    """
    places: dict[str, list[int]] = {}
    for position, name in enumerate(labels):
        places.setdefault(name, []).append(position)
    chosen: list[int] = []
    for name, own in places.items():
        count = min(wanted.get(name, 0), max(1, len(own) // 5)) if len(own) >= 3 else 0
        order = torch.randperm(len(own), generator=generator(seed, "hold out", name, number))
        chosen.extend(own[int(i)] for i in order[:count])
    return sorted(chosen)


def first_wanted(labels: Sequence[str], wanted: Mapping[str, int]) -> list[int]:
    """Return the positions of the first images of each class, as many as are wanted of it."""
    left = dict(wanted)
    chosen: list[int] = []
    for position, name in enumerate(labels):
        if left.get(name, 0) > 0:
            left[name] -= 1
            chosen.append(position)
    return chosen


def image_keys(images: Images) -> list[bytes]:
    """Hash each image (N): equal images have equal keys."""
    parts = torch.arange(len(images)).split(1000)
    return [key for part in parts for key in pixel_keys(images.gather(part))]


@final
class HeldOut:
    """The held-out images of each class index, on the CPU."""

    def __init__(self) -> None:
        self._images: dict[int, TensorImages] = {}

    def __len__(self) -> int:
        """Return the number of images."""
        return sum(len(images) for images in self._images.values())

    @property
    def classes(self) -> list[int]:
        """Class indices that have images, ascending."""
        return sorted(self._images)

    @property
    def num_bytes(self) -> int:
        """Bytes of their raw pixels."""
        return sum(images.num_bytes for images in self._images.values())

    def copy(self) -> "HeldOut":
        """Return the same images; which ones they are can change on its own."""
        twin = HeldOut()
        twin._images = dict(self._images)
        return twin

    def count(self, index: int) -> int:
        """Return the number of a class's images."""
        return len(self._images[index]) if index in self._images else 0

    def of_class(self, index: int) -> TensorImages:
        """Return a class's images."""
        return self._images[index]

    def add(self, index: int, images: Images) -> None:
        """Keep more images of a class, those it had first."""
        if len(images) == 0:
            return
        fresh = images.gather(torch.arange(len(images))).cpu()
        if index in self._images:
            fresh = torch.cat([self._images[index].pixels, fresh])
        self._images[index] = TensorImages(fresh)

    def forget(self, index: int) -> None:
        """Let a class's images go."""
        self._images.pop(index, None)

    def data(self, classes: Collection[int] | None = None) -> LabelledImages | None:
        """Return the images of some classes, or of all; none if there are none."""
        parts = [
            LabelledImages(images, torch.full((len(images),), index))
            for index, images in sorted(self._images.items())
            if classes is None or index in classes
        ]
        return concatenate(parts) if parts else None

    def keys(self) -> set[bytes]:
        """Return the keys of all images; see ``image_keys``."""
        return {key for images in self._images.values() for key in pixel_keys(images.pixels)}
