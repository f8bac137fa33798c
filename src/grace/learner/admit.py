"""Admit an update: check its images, make its task, hold images out, keep below the ceiling.

A ceiling bounds the bytes of one version on disk. Weights, method state and images are counted
exactly; for the document and the headers of image files a fixed number of bytes is reserved for
each class and update, so that the bound does not depend on the clock's digits. Shapes: N images.
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
from grace.base.randomness import generator
from grace.data.folder_tree import class_name, spelling
from grace.data.images import Images, LabelledImages, image_keys
from grace.data.memory import ExemplarMemory, Room, most_bytes
from grace.data.scenario import Task
from grace.engine.ranks import Ranks
from grace.learner.document import UpdateRecord, portable
from grace.learner.given_images import AnyImages, as_images, as_labels
from grace.learner.model_state import HeldOut, ModelState
from grace.settings.experiment import DataSettings, ExperimentSettings, GateSettings

ALWAYS_ALLOWED = 10
"""Images of each class that may be held out even where they take much of a ceiling."""
RESERVED_PER_LEARNER = 4_500
"""Bytes: the fixed part of the document, the work of its last update, the method's values."""
RESERVED_PER_UPDATE = 2_500
"""Bytes: an update's record (about 600), its reason (up to 500), the entries of new parts."""
RESERVED_PER_CLASS = 615
"""Bytes: headers of a class's two files (130 each), their entries (110 each), its counts."""
RESERVED_FOR_FEATURES = 240
"""Bytes: longer headers of a class's two files if they also hold features."""
RESERVED_PER_RESULT = 75
"""Bytes: the numbers of a class's held-out images in an update's record."""


@final
@dataclass(frozen=True)
class UpdateInput:
    """Images of one update, and the images to hold out if they were given separately.

    What the update may cost does not change the digest.
    """

    images: Images
    labels: Sequence[str]
    validation: tuple[Images, Sequence[str]] | None
    gate: GateSettings
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
    gate: GateSettings | None = None,
    is_last: bool = False,
    settings: DataSettings | None = None,
) -> UpdateInput:
    """Check the input of an update.

    Args:
        images: N images of any form; see ``given_images.as_images``.
        labels: N class names.
        validation: images to hold out and their class names, if they are given separately.
        shape: (C, H, W) of the learner's images.
        gate: what the update may cost; ``None``: anything.
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
    return UpdateInput(data, names, held, gate or GateSettings(), is_last)


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


def admit(
    state: ModelState, given: UpdateInput, settings: ExperimentSettings, ceiling: "Ceiling | None"
) -> tuple[Task, HeldOut]:
    """Return an update's images as a task, and all held-out images from now on.

    The room for exemplars is set in the model's memory.

    Args:
        state: the model before the update.
        given: the images, checked.
        settings: of the model.
        ceiling: of the model, if it has one.

    Raises:
        GraceError: for an update that this model cannot learn or keep.
    """
    index = class_indices(state.class_names, given.labels)
    wanted, seed = settings.memory.validation, settings.seeds.exemplars
    if ceiling is not None:
        missing = sum(state.held_out.count(index[name]) < wanted for name in set(given.labels))
        wanted = ceiling.num_held_out(state.held_out, missing)
    task, held_out = _prepared(state, given, index, wanted, seed)
    memory = state.method.memory
    if memory.keep_all and state.history and len(memory.classes) < task.num_old_remembered:
        raise GraceError(
            f"a saved {settings.method.name} learner does not have the images it learnt from and "
            "cannot go on",
            "create a new one with all images",
        )
    if ceiling is not None:
        try:
            ceiling.make_room(state, task, held_out, [*index])
        except GraceError:
            if wanted <= ALWAYS_ALLOWED:
                raise
            # A fifth of the ceiling is too much here. The smallest ceiling that a refusal names
            # must be enough, though a higher ceiling would hold out more.
            task, held_out = _prepared(state, given, index, ALWAYS_ALLOWED, seed)
            ceiling.make_room(state, task, held_out, [*index])
    if settings.method.traits.memory != "none":
        memory.quota(task.num_remembered)
    return task, held_out


def _prepared(
    state: ModelState, given: UpdateInput, index: Mapping[str, int], wanted: int, seed: int
) -> tuple[Task, HeldOut]:
    """Return an update's images, with classes by index, as a task and as held-out images."""
    number, num_old = len(state.history) + 1, len(state.class_names)
    if number == 1 and len(index) < 2:
        raise GraceError(
            "the first update needs images of at least two classes", "add another class"
        )
    memory = state.method.memory
    data, held_out = split_validation(given, index, state.held_out, memory, wanted, seed, number)
    task = Task(
        number=number,
        data=data,
        new_classes=range(num_old, len(index)),
        is_last=given.is_last,
        forgotten=frozenset(state.forgotten - set(data.labels.tolist())),
    )
    return task, held_out


def hold_out(num: int, wanted: int, seed: int, name: str, number: int) -> list[int]:
    """Choose at random which images of a class are held out, and return their places, ascending.

    Of n ≥ 3 images ``min(wanted, max(1, n // 5))`` are held out, of fewer none.

    Args:
        num: n, images of the class.
        wanted: images to hold out.
        seed: seed of the draws.
        name: of the class: each has its own generator.
        number: the update's number, so that every update draws differently.
    """
    count = min(wanted, max(1, num // 5)) if num >= 3 else 0
    order: list[int] = torch.randperm(
        num, generator=generator(seed, "hold out", name, number)
    ).tolist()
    return sorted(order[:count])


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
    wanting = [index[name] for name in missing if missing[name]]
    learnt = {key for own in wanting for key in image_keys(memory.of_class(own))}
    images, names = given.validation or (given.images, given.labels)
    fresh: dict[str, list[int]] = {}
    for place in _unseen(images, held, learnt, memory):
        fresh.setdefault(names[place], []).append(place)
    for name, own in fresh.items():
        num_learnt = memory.original_counts.get(index[name], 0)
        if given.validation is not None:
            own = own[: missing[name]]
        elif num_learnt and len(memory.of_class(index[name])) < num_learnt:
            continue
        else:
            own = [own[i] for i in hold_out(len(own), missing[name], seed, name, number)]
        held.add(index[name], images.subset(torch.tensor(own, dtype=torch.int64)))
    hidden = held.keys()
    places = [i for i, key in enumerate(keys) if key not in hidden]
    for name in sorted(set(given.labels) - {given.labels[i] for i in places}):
        raise GraceError(
            f"all images of class '{name}' are held out already", "give others or leave it out"
        )
    data = LabelledImages(given.images, labels)
    return data if len(places) == len(data) else data.subset(torch.tensor(places)), held


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
class Ceiling:
    """The number of bytes that one version of a learner may take on disk.

    Args:
        settings: of the learner; they name a ceiling.
        shape: (C, H, W) of every image.
        ranks: the processes that train together.
        feature_bytes: bytes of the features that are saved beside each image; 0: there are none.

    Raises:
        GraceError: for a method that keeps all images.
    """

    def __init__(
        self,
        settings: ExperimentSettings,
        shape: tuple[int, int, int],
        ranks: Ranks,
        feature_bytes: int,
    ) -> None:
        assert settings.memory.max_mb is not None
        if settings.method.traits.memory == "all images":
            raise GraceError(
                f"{settings.method.name} keeps all images, which no ceiling can bound",
                "choose another method, or no ceiling",
            )
        self.num_bytes = int(settings.memory.max_mb * 1_000_000)
        self._settings = settings
        self._ranks = ranks
        self._feature_bytes = feature_bytes
        self._pixel_bytes = math.prod(shape)
        self._exemplar_bytes = most_bytes(settings.memory, shape) + feature_bytes

    def num_held_out(self, held_out: HeldOut, missing: int) -> int:
        """Return how many images of each class to hold out.

        Held-out images take at most a fifth of the ceiling, but ``ALWAYS_ALLOWED`` of each class
        are allowed under any.

        Args:
            held_out: the images that are held out already.
            missing: number of classes of the update that have fewer than the settings ask for.
        """
        left = self.num_bytes // 5 - held_out.num_bytes
        room = left // (self._pixel_bytes * max(1, missing))
        return min(self._settings.memory.validation, max(ALWAYS_ALLOWED, room))

    def make_room(
        self, state: ModelState, task: Task, held_out: HeldOut, names: Sequence[str]
    ) -> None:
        """Set the room for exemplars in an update; see ``set_room``; ``names`` are by index."""
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
        """Set the room for exemplars.

        Args:
            state: the model; its memory gets the room.
            held_out: held-out images from now on.
            weights: bytes of weights and method state from now on.
            num_classes: classes from now on.
            num_remembered: those of them that are not forgotten.
            names: names of the classes that a coming update brings and revives.
            what: what needs the room, in words.

        Raises:
            GraceError: if not even one exemplar of each class fits; the message names the smallest
                ceiling that is enough.
        """
        kept, wants = self._settings.memory, self._settings.method.traits.memory != "none"
        reserved = reserved_bytes(portable(self._settings), state.history, *names)
        # Two numbers per held-out image, by which unknown images are recognised.
        reserved += 8 * len(held_out) + 1000
        reserved += len(strict_json.dump([change.model_dump() for change in state.changed]))
        if self._feature_bytes:
            reserved += RESERVED_FOR_FEATURES * num_classes
        # Processes may differ in settings that change no result, such as their threads.
        reserved = self._ranks.broadcast_value(reserved)
        held = held_out.num_bytes + self._feature_bytes * len(held_out)
        num = num_remembered if wants and (kept.size != 0 or kept.per_class is not None) else 0
        needed = weights + num * self._exemplar_bytes + held + reserved
        if needed > self.num_bytes:
            is_new = not state.history and self._settings.backbone.weights == "none"
            remedies = [
                *["hold out fewer images by memory.validation"] * (needed - held <= self.num_bytes),
                *["choose a smaller backbone.name"] * is_new,
                # The settings in the document name the ceiling, which may then have more digits.
                f"set memory.max_mb={in_mb(needed + 1_000)}",
            ]
            raise GraceError(
                f"{what} needs at least {in_mb(needed + 1_000)} MB: {in_mb(weights)} MB of weights "
                f"and state of the method, {num} exemplars, held-out images; the ceiling is "
                f"{in_mb(self.num_bytes)} MB",
                ", or ".join(remedies),
            )
        left = max(0, self.num_bytes - held - reserved)
        state.method.memory.room = Room(left, self._exemplar_bytes)


def in_mb(num_bytes: int) -> str:
    """Return bytes as megabytes, rounded up to three places: a ceiling that is enough."""
    return f"{-(-num_bytes // 1000) / 1000:.3f}"


def reserved_bytes(
    settings: ExperimentSettings,
    history: Sequence[UpdateRecord],
    new_names: Sequence[str],
    revived_names: Sequence[str],
) -> int:
    """Return an upper bound on the bytes of the next version's document and image headers.

    The user's texts, settings and class names, are counted as JSON.

    Args:
        settings: the learner's settings.
        history: its updates so far.
        new_names: new classes of the next update.
        revived_names: forgotten classes of the next update.
    """
    new = [*(update.new_class_names for update in history), new_names]
    revived = [*(update.revived_class_names for update in history), revived_names]
    names = [name for group in new for name in group]
    # An update's record has a result for every class known by then.
    num_results = sum(len(group) * (len(new) - place) for place, group in enumerate(new))
    texts = [settings.model_dump(mode="json"), names, *map(list, revived)]
    return (
        RESERVED_PER_LEARNER
        + RESERVED_PER_UPDATE * len(new)
        + RESERVED_PER_CLASS * len(names)
        + RESERVED_PER_RESULT * num_results
        + len(strict_json.dump(texts))
    )
