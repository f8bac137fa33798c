"""The part of a model that an update changes, and the document of a version that it becomes.

Held-out images are never trained on: they measure the accuracy of every update.
"""

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal, final

import torch
from torch import Tensor

import grace
from grace.base.atomic import Ref
from grace.base.tensors import encoded_size
from grace.data.images import Images, LabelledImages, TensorImages, concatenate, pixel_keys
from grace.learner.calibration import Recogniser
from grace.learner.document import Creation, Document, ImagesRef, UpdateRecord
from grace.learner.setting_changes import SettingChange
from grace.learner.store import Put
from grace.methods.method import Method
from grace.methods.saved import image_tensors


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
        temperature: divides the scores that the model answers with.
        version: number of the version that is loaded; ``None``: the model is not saved.
        changed: settings that differ from those of that version.
    """

    method: Method
    class_names: list[str] = field(default_factory=list)
    forgotten: set[int] = field(default_factory=set)
    history: list[UpdateRecord] = field(default_factory=list)
    held_out: HeldOut = field(default_factory=HeldOut)
    recogniser: Recogniser = field(default_factory=Recogniser)
    temperature: float = 1.0
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
            temperature=self.temperature,
            version=self.version,
            changed=self.changed,
        )


def to_document(
    creation: Creation,
    state: ModelState,
    put: Put,
    *,
    number: int,
    status: Literal["accepted", "rejected"] = "accepted",
    digest: str | None = None,
) -> Document:
    """Store what a model has learnt and return the document of its version.

    Args:
        creation: settings and images of the learner.
        state: what it has learnt, which is something.
        put: stores tensors and returns their reference.
        number: number of the version.
        status: result of the acceptance gate.
        digest: digest of the images of its last update.
    """
    earlier = [update.past for update in state.history[:-1]]
    return Document(
        number=number,
        parent=state.version,
        status=status,
        digest=digest,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        grace_version=grace.__version__,
        settings=creation.settings,
        changed=state.changed,
        shape=creation.shape,
        mean=creation.mean,
        std=creation.std,
        forgotten=tuple(sorted(state.forgotten)),
        values=dict(state.method.state.collect().values),
        original_counts=dict(state.method.memory.original_counts),
        history=(*earlier, *state.history[-1:]),
        **_stored(state, put),
    )


def _stored(state: ModelState, put: Put) -> dict[str, Any]:
    """Store all tensors of a version; return their references by the document's fields."""
    method, memory, held_out = state.method, state.method.memory, state.held_out

    def images_ref(images: Images) -> ImagesRef:
        return ImagesRef(num=len(images), **dict(put(image_tensors(images, method.features))))

    # A memory that keeps every image is not saved: its images stay where they came from.
    kept = [] if memory.keep_all else memory.classes
    scores = state.recogniser.tensors
    return {
        "parts": {name: put(part) for name, part in method.state.collect().parts.items()},
        "exemplars": {index: images_ref(memory.of_class(index)) for index in kept},
        "validation": {i: images_ref(held_out.of_class(i)) for i in held_out.classes},
        "calibration": put(scores) if scores else None,
    }


def count_bytes(state: ModelState) -> int:
    """Return the bytes of a version's objects, without its document; nothing is written.

    Equal objects are counted twice.
    """
    sizes: list[int] = []

    def put(tensors: Mapping[str, Tensor]) -> Ref:
        sizes.append(file_bytes(tensors))
        return Ref(sha256="0" * 64, bytes=sizes[-1])

    _stored(state, put)
    return sum(sizes)


def file_bytes(tensors: Mapping[str, Tensor]) -> int:
    """Return the bytes of a file of tensors of any shape."""
    return encoded_size({name: (tuple(t.shape), t.dtype) for name, t in tensors.items()})
