"""Admit an update: check its images, make its task, hold images out, keep below the ceiling.

Shapes: N images.
"""

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch

from grace.base import strict_json
from grace.base.errors import GraceError
from grace.data.encoded import most_bytes
from grace.data.folder_tree import class_name, spelling
from grace.data.images import Images, LabelledImages, image_keys
from grace.data.memory import ExemplarMemory
from grace.data.scenario import Task
from grace.engine.ranks import Ranks
from grace.learner.ceiling import RESERVED_FOR_FEATURES, Ceiling, reserved_bytes
from grace.learner.document import portable
from grace.learner.gate import Limits
from grace.learner.given_images import AnyImages, as_images, as_labels
from grace.learner.model_state import (
    ALWAYS_ALLOWED,
    HeldOut,
    ModelState,
    affordable,
    first_wanted,
    hold_out,
)
from grace.learner.unknown import most_score_bytes
from grace.settings.experiment import DataSettings, ExperimentSettings


@final
@dataclass(frozen=True)
class UpdateInput:
    """Images of one update, and the images to hold out if they were given separately.

    What the update may cost does not change the digest.
    """

    images: Images
    labels: Sequence[str]
    validation: tuple[Images, Sequence[str]] | None
    limits: Limits
    is_last: bool

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the input: equal for equal updates."""
        digest = hashlib.sha256(repr(self.is_last).encode())
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
    return UpdateInput(data, names, held, limits or Limits(), is_last)


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


@final
class Admission:
    """Turns the images of an update into a task, and refuses what a model cannot learn or keep.

    Args:
        settings: of the model.
        shape: (C, H, W) of every image.
        ranks: the processes that train together.
        feature_bytes: bytes of the features that are saved beside each image; 0: there are none.

    Raises:
        GraceError: for a ceiling over a method that keeps all images.
    """

    def __init__(
        self,
        settings: ExperimentSettings,
        shape: tuple[int, int, int],
        ranks: Ranks,
        feature_bytes: int,
    ) -> None:
        self._settings = settings
        self._image_bytes = math.prod(shape)
        self._ranks = ranks
        self._feature_bytes = feature_bytes
        self.ceiling: Ceiling | None = None
        self.reserved = 0
        """Bytes under the ceiling that are kept free for the document."""
        max_mb, method = settings.memory.max_mb, settings.method
        if max_mb is None:
            return
        self.ceiling = Ceiling(max_mb, most_bytes(settings.memory, shape) + feature_bytes)
        if method.traits.memory == "all images":
            raise GraceError(
                f"{method.name} keeps all images, which no ceiling can bound",
                "choose another method, or no ceiling",
            )

    def admit(self, state: ModelState, given: UpdateInput) -> tuple[Task, HeldOut]:
        """Return an update's images as a task, and all held-out images from now on.

        The room for exemplars is set in the model's memory.

        Args:
            state: the model before the update.
            given: the images, checked.

        Raises:
            GraceError: for an update that this model cannot learn.
        """
        index = class_indices(state.class_names, given.labels)
        wanted = self._num_held_out(state, given, index)
        task, held_out = self._prepared(state, given, index, wanted)
        memory, traits = state.method.memory, self._settings.method.traits
        if memory.keep_all and state.history and len(memory.classes) < task.num_old_remembered:
            raise GraceError(
                f"a saved {self._settings.method.name} learner does not have the images it learnt "
                "from and cannot go on",
                "create a new one with all images",
            )
        if self.ceiling is not None:
            try:
                self._set_room_for(state, task, held_out, index)
            except GraceError:
                if wanted <= ALWAYS_ALLOWED:
                    raise
                # A fifth of the ceiling is too much here. The smallest ceiling that a refusal names
                # must be enough, though a higher ceiling would hold out more.
                task, held_out = self._prepared(state, given, index, ALWAYS_ALLOWED)
                self._set_room_for(state, task, held_out, index)
        if traits.memory != "none":
            memory.quota(task.num_remembered)
        return task, held_out

    def _set_room_for(
        self, state: ModelState, task: Task, held_out: HeldOut, index: dict[str, int]
    ) -> None:
        """Set the room for exemplars in an update; see ``set_room``."""
        names = [*index]
        revived = sorted(state.forgotten & set(task.data.labels.tolist()))
        grows = self._settings.method.traits.grows_every_task and task.number > 1
        self.set_room(
            state,
            held_out,
            state.method.state.bytes_after(task.num_classes, int(grows)),
            task.num_classes,
            task.num_remembered,
            (names[task.num_old_outputs :], [names[i] for i in revived]),
        )

    def set_room(
        self,
        state: ModelState,
        held_out: HeldOut,
        weights: int,
        num_classes: int,
        num_remembered: int,
        names: tuple[Sequence[str], Sequence[str]] = ((), ()),
        what: str = "this update",
    ) -> None:
        """Set the room for exemplars under the ceiling, which there must be.

        Args:
            state: the model; its memory gets the room.
            held_out: held-out images from now on.
            weights: bytes of weights and method state from now on.
            num_classes: classes from now on.
            num_remembered: those of them that are not forgotten.
            names: names of the classes that a coming update brings and revives.
            what: what needs the room, in words.

        Raises:
            GraceError: if not even one exemplar of each class fits.
        """
        assert self.ceiling is not None
        kept = self._settings.memory
        reserved = reserved_bytes(portable(self._settings), state.history, *names)
        # Two numbers per held-out image, by which unknown images are recognised.
        reserved += 8 * len(held_out) + 1000
        reserved += len(strict_json.dump([change.model_dump() for change in state.changed]))
        if self._feature_bytes:
            reserved += RESERVED_FOR_FEATURES * num_classes
        # Processes may differ in settings that change no result, such as their threads.
        reserved = self.reserved = self._ranks.broadcast_value(reserved)
        held_bytes = held_out.num_bytes + self._feature_bytes * len(held_out)
        wants = self._settings.method.traits.memory != "none"
        keeps_any = wants and (kept.size != 0 or kept.per_class is not None)
        self.ceiling.check(
            weights,
            num_remembered if keeps_any else 0,
            held_bytes,
            reserved,
            what=what,
            is_new=not state.history and self._settings.backbone.weights == "none",
        )
        score_bytes = None if self._feature_bytes else self._score_bytes
        state.method.memory.room = self.ceiling.room(held_bytes, reserved, score_bytes)

    def _score_bytes(self, width: int, num_classes: int) -> int:
        """Return the bytes to leave free for the score of unknown images of a trained network.

        Otherwise exemplars would fill the ceiling, and chance would decide if the score fits. A
        score that takes more than 1 % of the ceiling is not worth the exemplars.
        """
        assert self.ceiling is not None
        needed = most_score_bytes(width, num_classes)
        return needed if 100 * needed <= self.ceiling.num_bytes else 0

    def _num_held_out(self, state: ModelState, given: UpdateInput, index: dict[str, int]) -> int:
        """Return how many images of each class to hold out."""
        wanted, held = self._settings.memory.validation, state.held_out
        if self.ceiling is None:
            return wanted
        missing = sum(held.count(index[name]) < wanted for name in set(given.labels))
        most, image = self.ceiling.num_bytes, self._image_bytes
        return affordable(wanted, most, held.num_bytes, image, missing)

    def _prepared(
        self, state: ModelState, given: UpdateInput, index: dict[str, int], wanted: int
    ) -> tuple[Task, HeldOut]:
        """Return an update's images, with classes by index, as a task and as held-out images.

        Args:
            state: the model before the update.
            given: the images, checked.
            index: class index by name.
            wanted: images of each class to hold out.
        """
        number, num_old = len(state.history) + 1, len(state.class_names)
        if number == 1 and len(index) < 2:
            raise GraceError(
                "the first update needs images of at least two classes", "add another class"
            )
        seed, memory = self._settings.seeds.exemplars, state.method.memory
        data, held_out = split_validation(
            given, index, state.held_out, memory, wanted, seed, number
        )
        task = Task(
            number=number,
            data=data,
            new_classes=range(num_old, len(index)),
            is_last=given.is_last,
            forgotten=frozenset(state.forgotten - set(data.labels.tolist())),
        )
        return task, held_out
