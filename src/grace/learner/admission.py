"""Admit an update: make its task, hold images out, keep below the ceiling; refuse what is unfit."""

import math
from collections.abc import Sequence
from typing import final

from grace.base import strict_json
from grace.base.errors import GraceError
from grace.data.encoded import most_bytes
from grace.data.scenario import Task
from grace.engine.ranks import Ranks
from grace.learner import saving
from grace.learner.ceiling import RESERVED_FOR_FEATURES, Ceiling, reserved_bytes
from grace.learner.held_out import ALWAYS_ALLOWED, HeldOut, affordable
from grace.learner.model_state import ModelState
from grace.learner.unknown import most_score_bytes
from grace.learner.update_input import UpdateInput, class_indices, split_validation
from grace.settings.experiment import ExperimentSettings


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
        reserved = reserved_bytes(saving.portable(self._settings), state.history, *names)
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
