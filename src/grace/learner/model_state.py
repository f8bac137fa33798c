"""The part of a model that an update changes: its method, names, records, held-out images.

Held-out images are never trained on: they measure the accuracy of every update. Shapes: N images,
K classes.
"""

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import final

import torch

from grace.base.randomness import generator
from grace.data.images import Images, LabelledImages, TensorImages, concatenate, pixel_keys
from grace.learner.document import Predictor, UpdateRecord
from grace.learner.setting_changes import SettingChange
from grace.learner.unknown import Recogniser
from grace.methods.method import Method

ALWAYS_ALLOWED = 10
"""Images of each class that may be held out even where they take much of a ceiling."""


def hold_out(labels: Sequence[str], wanted: Mapping[str, int], seed: int, number: int) -> list[int]:
    """Choose at random which images of an update are held out.

    Of a class with n ≥ 3 images ``min(wanted, max(1, n // 5))`` are held out, of a smaller class
    none. Each class has its own generator.

    Args:
        labels: class name of each image.
        wanted: number of images to hold out by class name; other classes give none.
        seed: seed of the draws.
        number: the update's number, so that every update draws differently.

    Returns:
        The positions of the held-out images, ascending.
    """
    places: dict[str, list[int]] = {}
    for position, name in enumerate(labels):
        places.setdefault(name, []).append(position)
    chosen: list[int] = []
    for name, found in places.items():
        count = min(wanted.get(name, 0), max(1, len(found) // 5)) if len(found) >= 3 else 0
        order = torch.randperm(len(found), generator=generator(seed, "hold out", name, number))
        chosen.extend(found[int(i)] for i in order[:count])
    return sorted(chosen)


def affordable(wanted: int, max_bytes: int, num_bytes: int, image_bytes: int, missing: int) -> int:
    """Return how many images of each class to hold out under a ceiling.

    Held-out images take at most a fifth of the ceiling, but ``ALWAYS_ALLOWED`` of each class are
    allowed under any.

    Args:
        wanted: number of images of each class that the settings ask for.
        max_bytes: the ceiling.
        num_bytes: bytes of the images that are held out already.
        image_bytes: bytes of one image.
        missing: number of classes of the update that have fewer than ``wanted``.
    """
    room = (max_bytes // 5 - num_bytes) // (image_bytes * max(1, missing))
    return min(wanted, max(ALWAYS_ALLOWED, room))


def first_wanted(labels: Sequence[str], wanted: Mapping[str, int]) -> list[int]:
    """Return the positions of the first ``wanted[name]`` images of each class."""
    left = dict(wanted)
    chosen: list[int] = []
    for position, name in enumerate(labels):
        if left.get(name, 0) > 0:
            left[name] -= 1
            chosen.append(position)
    return chosen


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
        """Indices of the classes that have images, ascending."""
        return sorted(self._images)

    @property
    def num_bytes(self) -> int:
        """Bytes of their raw pixels."""
        return sum(images.num_bytes for images in self._images.values())

    def copy(self) -> "HeldOut":
        """Return a copy: adding to it or forgetting in it does not change this one."""
        twin = HeldOut()
        twin._images = dict(self._images)
        return twin

    def count(self, index: int) -> int:
        """Return the number of a class's images."""
        return len(self._images[index]) if index in self._images else 0

    def of_class(self, index: int) -> TensorImages:
        """Return a class's images (n, C, H, W)."""
        return self._images[index]

    def add(self, index: int, images: Images) -> None:
        """Add images to a class, after those that it has."""
        if len(images) == 0:
            return
        fresh = images.gather(torch.arange(len(images))).cpu()
        if index in self._images:
            fresh = torch.cat([self._images[index].pixels, fresh])
        self._images[index] = TensorImages(fresh)

    def first(self, count: int) -> "HeldOut":
        """Return the first ``count`` images of each class."""
        twin = HeldOut()
        for index in self.classes:
            twin.add(index, self._images[index].subset(torch.arange(min(count, self.count(index)))))
        return twin

    def judging(self, earlier: "HeldOut", old: Collection[int]) -> "HeldOut":
        """Return the images that judge an update: those of old classes that were held out before.

        Images that an update brings of old classes would be asked about what it taught: folders
        that were swapped by mistake would show a gain.

        Args:
            earlier: held-out images before the update; these ones follow them.
            old: indices of the classes known before it.
        """
        twin = self.copy()
        for index in set(self.classes).intersection(old):
            twin.forget(index)
            if earlier.count(index):
                twin.add(index, earlier.of_class(index))
        return twin

    def forget(self, index: int) -> None:
        """Drop a class's images."""
        self._images.pop(index, None)

    def data(self, classes: Collection[int] | None = None) -> LabelledImages | None:
        """Return the images of some classes; ``None``: of all. Without images, return ``None``."""
        parts = [
            LabelledImages(images, torch.full((len(images),), index))
            for index, images in sorted(self._images.items())
            if classes is None or index in classes
        ]
        return concatenate(parts) if parts else None

    def keys(self) -> set[bytes]:
        """Return the keys of all images; see ``image_keys``."""
        return {key for images in self._images.values() for key in pixel_keys(images.pixels)}


@final
@dataclass(frozen=True)
class Size:
    """The size of a learner's network; images are not counted."""

    num_backbones: int = 0
    backbone_parameters: int = 0
    head_parameters: int = 0
    weight_bytes: int = 0
    """Weights and buffers."""

    @property
    def num_parameters(self) -> int:
        """Number of parameters of backbones and heads together."""
        return self.backbone_parameters + self.head_parameters


@final
@dataclass
class ModelState:
    """The part of a model that an update changes.

    Args:
        method: the method with its network, exemplars and other state.
        class_names: names of all classes; a class's index is its place here.
        forgotten: indices of the classes that are hidden.
        history: the record of every update.
        held_out: images that measure updates and are never trained on.
        recogniser: recognises images that are unlike anything learnt.
        predictor: the predictor that the model answers with.
        version: number of the version that is loaded; ``None``: the model is not saved.
        changed: settings that differ from those of that version.
    """

    method: Method
    class_names: list[str] = field(default_factory=list)
    forgotten: set[int] = field(default_factory=set)
    history: list[UpdateRecord] = field(default_factory=list)
    held_out: HeldOut = field(default_factory=HeldOut)
    recogniser: Recogniser = field(default_factory=Recogniser)
    predictor: Predictor = field(default_factory=Predictor)
    version: int | None = None
    changed: tuple[SettingChange, ...] = ()

    @property
    def live_class_names(self) -> list[str]:
        """Names of the classes that are not forgotten."""
        return [n for i, n in enumerate(self.class_names) if i not in self.forgotten]

    def copy(self) -> "ModelState":
        """Return a copy that no update of this one changes."""
        # Exemplars and the factory are shared with the copy: updates never write into them.
        method = self.method
        shared = {id(method.memory): method.memory.copy(), id(method.factory): method.factory}
        return ModelState(
            method=copy.deepcopy(method, shared),
            class_names=list(self.class_names),
            forgotten=set(self.forgotten),
            history=list(self.history),
            held_out=self.held_out.copy(),
            recogniser=self.recogniser,
            predictor=self.predictor,
            version=self.version,
            changed=self.changed,
        )
