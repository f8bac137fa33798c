"""The input of an update: checked images, labels and class indices.

Shapes: N images.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch

from grace.base.errors import GraceError
from grace.data.folder_tree import class_name, spelling
from grace.data.images import Images, LabelledImages, image_keys
from grace.data.memory import ExemplarMemory
from grace.learner.gate import Limits
from grace.learner.given_images import AnyImages, as_images, as_labels
from grace.learner.held_out import HeldOut, first_wanted, hold_out
from grace.settings.experiment import DataSettings


@final
@dataclass(frozen=True)
class UpdateInput:
    """Images of one update, and the images to hold out if they were given separately.

    The digest is computed from ``identity`` if that is given, otherwise from the pixels; what the
    update may cost does not change it.
    """

    images: Images
    labels: Sequence[str]
    validation: tuple[Images, Sequence[str]] | None
    limits: Limits
    is_last: bool
    identity: str | None = None

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the input: equal for equal updates."""
        digest = hashlib.sha256(repr((self.is_last, self.identity)).encode())
        if self.identity is None:
            given = [(self.images, self.labels), *([self.validation] if self.validation else [])]
            for images, labels in given:
                digest.update(repr(list(labels)).encode() + images.digest())
        return digest.hexdigest()


def check_input(
    images: AnyImages,
    labels: Sequence[str],
    validation: tuple[AnyImages, Sequence[str]] | None,
    shape: tuple[int, int, int],
    *,
    limits: Limits | None = None,
    is_last: bool = False,
    identity: str | None = None,
    settings: DataSettings | None = None,
) -> UpdateInput:
    """Check the input of an update.

    Args:
        images: N images of any form; see ``given_images.as_images``.
        labels: N class names.
        validation: images to hold out and their class names, if they are given separately.
        shape: (C, H, W) of the learner's images.
        limits: what the update may cost; ``None``: anything.
        is_last: the stream ends with this update.
        identity: a name for the update, used instead of hashing its images.
        settings: how files and PIL images are read; ``None``: the defaults.

    Raises:
        GraceError: for images of another shape, labels that do not match, or unfit class names.
    """
    data, names = _labelled(images, labels, shape, settings)
    held = None
    if validation is not None and len(validation[1]):
        held = _labelled(*validation, shape, settings)
        unknown = sorted(set(held[1]) - set(names))
        if unknown:
            raise GraceError(f"class '{unknown[0]}' has held-out images but none to learn from")
    return UpdateInput(data, names, held, limits or Limits(), is_last, identity)


def class_indices(known: Sequence[str], labels: Sequence[str]) -> dict[str, int]:
    """Map each class name to its index: known names first, new ones in order of appearance.

    Raises:
        GraceError: if a new name differs from another one only in case or spelling.
    """
    index = {name: i for i, name in enumerate(known)}
    by_spelling = {spelling(name): name for name in known}
    for name in labels:
        if name in index:
            continue
        twin = by_spelling.setdefault(spelling(name), name)
        if twin != name:
            raise GraceError(
                f"class '{name}' differs from class '{twin}' only in case", "use one of the names"
            )
        index[name] = len(index)
    return index


def split_validation(
    given: UpdateInput,
    index: Mapping[str, int],
    held_out: HeldOut,
    memory: ExemplarMemory,
    wanted: int,
    seed: int,
    number: int,
) -> tuple[LabelledImages, HeldOut]:
    """Split an update's images into training images and held-out images.

    A held-out image, of now or before, is never trained on, nor is any copy of it; an image that
    was trained on is never held out. Copies are found by comparing with the memory: a known class
    gives more held-out images only while the memory has every image that it was learnt from.

    Args:
        given: the update.
        index: class index by name.
        held_out: images held out so far; not changed.
        memory: exemplars, and the number of images that each class was learnt from.
        wanted: number of images to hold out of each class.
        seed: seed of the choice.
        number: the update's number.

    Returns:
        The training images, and all held-out images afterwards.

    Raises:
        GraceError: if a class has no training image left.
    """
    labels = torch.tensor([index[name] for name in given.labels], dtype=torch.int64)
    held = held_out.copy()
    if wanted == 0 and not held.classes:
        return LabelledImages(given.images, labels), held
    keys = image_keys(given.images)
    missing = {name: max(0, wanted - held.count(i)) for name, i in index.items()}
    learnt = _exemplar_keys(memory, [index[name] for name in missing if missing[name]])
    if given.validation is not None:
        images, names = given.validation
        fresh = _unseen(images, held, learnt, memory)
        chosen = [fresh[i] for i in first_wanted([names[i] for i in fresh], missing)]
    else:
        images, names = given.images, given.labels
        counts = memory.original_counts
        closed = {i for i in counts if len(memory.of_class(i)) < counts[i]}
        fresh = _unseen(images, held, learnt, memory)
        fresh = [i for i in fresh if index[names[i]] not in closed]
        chosen = [fresh[i] for i in hold_out([names[i] for i in fresh], missing, seed, number)]
    for name in sorted({names[i] for i in chosen}):
        places_of_class = torch.tensor([i for i in chosen if names[i] == name])
        held.add(index[name], images.subset(places_of_class))
    hidden = held.keys()
    places = [i for i, key in enumerate(keys) if key not in hidden]
    for name in sorted(set(given.labels) - {given.labels[i] for i in places}):
        raise GraceError(
            f"all images of class '{name}' are held out already", "give others or leave it out"
        )
    data = LabelledImages(given.images, labels)
    return data if len(places) == len(data) else data.subset(torch.tensor(places)), held


def num_kept(images: Images, classes: Sequence[int], held: HeldOut, memory: ExemplarMemory) -> int:
    """Return how many different images a learner keeps already, as exemplars or held out.

    Args:
        images: the images.
        classes: those whose exemplars are compared.
        held: held-out images.
        memory: stores exemplars.
    """
    fresh = _unseen(images, held, _exemplar_keys(memory, classes), memory)
    return len(set(image_keys(images))) - len(fresh)


def _exemplar_keys(memory: ExemplarMemory, classes: Sequence[int]) -> set[bytes]:
    return {key for index in classes for key in image_keys(memory.of_class(index))}


def _unseen(
    images: Images, held: HeldOut, learnt: Collection[bytes], memory: ExemplarMemory
) -> list[int]:
    """Return the positions of images that are neither held out nor learnt; of copies, the first.

    Args:
        images: the images.
        held: held-out images.
        learnt: keys of exemplars; images are compared with them as they would be stored.
        memory: stores exemplars.
    """
    keys = image_keys(images)
    stored = keys
    if learnt:
        kept = memory.as_stored(LabelledImages(images, torch.zeros(len(images)).long())).images
        stored = keys if kept is images else image_keys(kept)
    hidden = held.keys()
    places = {
        key: place
        for place, key in reversed(list(enumerate(keys)))
        if key not in hidden and stored[place] not in learnt
    }
    return sorted(places.values())


def _labelled(
    images: AnyImages,
    labels: Iterable[Any],
    shape: tuple[int, int, int],
    settings: DataSettings | None,
) -> tuple[Images, list[str]]:
    data = as_images(images, shape, settings)
    return data, [class_name(name) for name in as_labels(labels, len(data))]
