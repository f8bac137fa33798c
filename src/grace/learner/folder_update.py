"""One update of a learner with the images of a folder: read them, then learn them."""

import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, final

from grace.base.errors import GraceError, GraceWarning, Setting
from grace.base.words import counted, in_bytes
from grace.data.folder_tree import split_folders
from grace.data.folders import UpdateFolder, load_update
from grace.engine.progress import Progress
from grace.learner import updating
from grace.learner.changeable import lasting
from grace.learner.document import Document
from grace.learner.gate import Limits, too_fine
from grace.learner.learn_call import LearnOptions, LearnResult
from grace.learner.learner import Learner
from grace.learner.learnt_before import LearntBefore, note_on
from grace.learner.pruning import bytes_of, keep_within
from grace.learner.requested import HELD_OUT
from grace.learner.resolved_call import ResolvedCall
from grace.learner.saving import carried_out_here
from grace.learner.store import ModelStore
from grace.learner.unfinished import cleaned_after_failure, has_work
from grace.learner.update_input import check_input, num_kept
from grace.settings.experiment import ExperimentSettings


@final
@dataclass(frozen=True)
class FolderUpdate:
    """The images of one update, checked and ready to learn; ``read`` makes one."""

    call: ResolvedCall
    folder: UpdateFolder
    progress: Progress

    @classmethod
    def read(cls, call: ResolvedCall, progress: Progress) -> Self:
        """Read the images of a folder in the shape and channels that a learner needs.

        Args:
            call: the learner and the images; the learner must not lie among the images.
            progress: receives the events of the work.

        Raises:
            GraceError: for anything wrong with the folder or an image.

        Warns:
            GraceWarning: images are left out, or an option has no effect.
        """
        if call.model is not None:
            _refuse_inside(call.model, call.images)
        progress.waiting("reading")
        data = call.wanted.data
        channels: Literal[1, 3] = data.channels or 3
        size = data.image_size
        if call.store is not None:
            depth, height, width = call.store.creation.shape
            channels = 1 if depth == 1 else 3
            size = height if size is not None and height == width else None
        folder = load_update(
            call.images,
            channels,
            size,
            skip_unreadable=call.options.skip_unreadable or data.skip_unreadable,
            skip_duplicates=call.options.skip_duplicates or data.skip_duplicates,
            max_pixels=data.max_pixels,
            fit=data.fit,
        )
        for note in (*map(GraceWarning, folder.notes), *_unused(folder, call.wanted, call.options)):
            warnings.warn(note, stacklevel=3)
        return cls(call, folder, progress)

    @property
    def options(self) -> LearnOptions:
        """The options of the call."""
        return self.call.options

    def create(self, *, in_memory: bool = False) -> Learner:
        """Create a learner for the images, which are checked before.

        Args:
            in_memory: without a home.

        Raises:
            GraceError: for images or settings that no learner can be created with.
        """
        shape, labels = self.folder.images.shape, self.folder.labels
        check_input(**self._given, shape=shape, limits=self.options.limits)
        if len(set(labels)) < 2:
            raise GraceError(
                f"'{self.call.images}' has images of one class, '{labels[0]}': the first update of "
                "a learner needs at least two",
                "add a folder with images of another class",
            )
        directory = None if in_memory else self.call.model
        return Learner.create(
            self.call.wanted, shape=shape, directory=directory, progress=self.progress
        )

    def load(self, store: ModelStore) -> Learner:
        """Load the learner that already exists, with the settings that the call asks for."""
        wanted = self.call.wanted
        saved = store.settings()
        learner = Learner.load(
            store.path,
            engine=self.call.requested.engine(wanted, carried_out_here(saved, None).engine),
            progress=self.progress,
        )
        learner.adopt(wanted.model_copy(update={"engine": learner.settings.engine}))
        return learner

    def learn(self, learner: Learner) -> LearnResult:
        """Teach a learner the images.

        Raises:
            GraceError: for images that this learner cannot learn.
        """
        store = learner.home
        assert store is not None
        before, numbers = store.current(), store.numbers()
        if not self.options.again and not store.pending():
            changed, others = learner.model.state.changed, self._before(store)
            other = others.elsewhere(changed)
            if other is not None and others.continues(other, changed):
                learner.rollback(other.number)
                return self._result(store, other, before, is_new=False)
            limits = self.options.limits.over(learner.settings.gate)
            for made in (other, others.rejected(changed, limits)):
                if made is not None:
                    warnings.warn(note_on(made, store), GraceWarning, stacklevel=3)
        new = sorted(set(self.folder.labels) - set(learner.class_names))
        known = set(range(len(learner.class_names))) - learner.forgotten
        counts = [learner.held_out.count(index) for index in sorted(known)]
        options = self.options
        limits = options.limits.over(learner.settings.gate)
        for note in too_fine(limits, [count for count in counts if count]):
            warnings.warn(note, stacklevel=3)
        self._warn_of_kept(learner)
        self.progress.update_started(new)
        with cleaned_after_failure(store):
            update = learner.update(
                **self._given,
                max_drop=options.max_drop,
                max_class_drop=options.max_class_drop,
                min_new=options.min_new,
                again=options.again,
            )
        document = store.document(store.numbers()[-1])
        is_new = document.number not in numbers
        if not is_new:
            # A version between others may be the one that answers.
            held = (made for made in store.documents() if made.history[-1] == update)
            document = next(held, document)
        return self._result(store, document, before, is_new=is_new)

    def _warn_of_kept(self, learner: Learner) -> None:
        """Warn of images that the learner keeps: a folder that grows gives them every time."""
        given = set(self.folder.labels)
        again = [index for index, name in enumerate(learner.class_names) if name in given]
        if self.options.again or not again:
            return
        images = self.folder.images
        if num := num_kept(images, again, learner.held_out, learner.method.memory):
            what = f"the model keeps {num} of these {counted(len(images), 'image')} already"
            message = f"{what}: remove them, or they are kept twice"
            warnings.warn(GraceWarning(message), stacklevel=4)

    def prune(self, result: LearnResult) -> LearnResult:
        """Remove the oldest versions beyond ``max_disk_mb``; return the result with their numbers.

        Warns:
            GraceWarning: what must stay takes more.
        """
        most = self.options.max_disk_mb
        if most is None:
            return result
        store = ModelStore.open(result.model)
        gone = keep_within(store, most)
        left = bytes_of(store.documents())
        if left > most * 1_000_000:
            warnings.warn(
                f"what must stay takes {in_bytes(left)}, more than the {most:g} MB for all "
                "versions (--max-disk-mb)",
                GraceWarning,
                stacklevel=3,
            )
        return replace(result, pruned=gone)

    def check(self) -> None:
        """Refuse what would be refused before any training; change nothing.

        Raises:
            GraceError: as ``create``, ``load`` and ``learn``.
        """
        store = self.call.store
        if store is None:
            learner = self.create(in_memory=True)
        elif self.known_already(store) is not None:
            return
        else:
            learner = self.load(store)
        limits = self.options.limits.over(learner.settings.gate)
        given = check_input(**self._given, shape=learner.shape, limits=limits)
        if store is not None and has_work(store) and not self.options.discard:
            changes = lasting(learner.model.state.changed)
            store.refuse_other_update(learner.version, given.digest, changes)
        updating.check(learner.model, given)

    def known_already(self, store: ModelStore) -> LearnResult | None:
        """Return the result of an earlier call if the learner has learnt these images already."""
        known = None if self.options.again else self._before(store).in_use()
        return known and self._result(store, known, store.current(), is_new=False)

    @cached_property
    def _given(self) -> dict[str, Any]:
        folder, validation = self.folder, None
        if folder.test_images is not None:
            validation = (folder.test_images, folder.test_labels)
        return {"images": folder.images, "labels": folder.labels, "validation": validation}

    def _before(self, store: ModelStore) -> LearntBefore:
        """Return the search for versions that have learnt these images."""

        def digest(limits: Limits) -> str:
            return check_input(**self._given, shape=store.creation.shape, limits=limits).digest

        return LearntBefore(store, self.folder.labels, digest)

    def _result(
        self,
        store: ModelStore,
        document: Document,
        was_in_use: int | None,
        *,
        is_new: bool,
    ) -> LearnResult:
        current = store.current()
        assert current is not None
        return LearnResult(
            model=store.path,
            document=document,
            is_new=is_new,
            in_use=current,
            was_in_use=was_in_use,
            class_names=sorted(set(self.folder.labels)),
        )


def _refuse_inside(model: Path, images: Path) -> None:
    for part in split_folders(images):
        if part is not None and model.resolve().is_relative_to(part.resolve()):
            raise GraceError(
                f"'{model}' lies in '{part}', where it would be taken for a class",
                "choose another directory for the learner",
            )


def _unused(
    folder: UpdateFolder, settings: ExperimentSettings, options: LearnOptions
) -> Iterator[GraceWarning]:
    """Yield a warning of each thing that was given but has no effect."""
    wanted = settings.memory.validation
    most = max(Counter(folder.test_labels).values(), default=0)
    if most > wanted:
        yield GraceWarning(
            f"of the test images only {wanted} of each class are used; '{folder.test_labels[0]}' "
            f"and others have up to {most}",
            setting=Setting("memory.validation", str(most)),
        )
    if options.limits.over(settings.gate).given and not wanted:
        yield GraceWarning(
            "no images are held out: every update is accepted, whatever it costs",
            setting=Setting("memory.validation", str(HELD_OUT)),
        )
