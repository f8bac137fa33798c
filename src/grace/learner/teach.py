"""Teach a learner the images of a folder: read them, then learn what it does not know already."""

import shlex
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

from grace.base.errors import DamagedError, GraceWarning
from grace.base.words import counted, in_bytes
from grace.data.folders import UpdateFolder, load_update
from grace.engine.progress import Progress, Silence
from grace.learner.admit import check_input, num_kept
from grace.learner.document import Document
from grace.learner.gate import accepts, too_fine
from grace.learner.learner import Learner
from grace.learner.request import HELD_OUT, LearnResult, ResolvedCall, cleaned_after_failure
from grace.learner.setting_changes import differences, is_limit, is_pace
from grace.learner.store import ModelStore, bytes_of
from grace.learner.versions import carried_out_here


def teach(call: ResolvedCall, progress: Progress | None) -> LearnResult:
    """Carry out a call of ``learn``; errors and warnings as there."""
    progress = progress or Silence()
    progress.waiting("reading")
    update = _FolderUpdate(call, load_update(call.images, **call.reading), progress)
    for note in update.notes():
        warnings.warn(note, stacklevel=3)
    if call.store is None:
        result = replace(update.learn(update.create()), chosen=call.chosen)
    else:
        known = update.known_already(call.store)
        result = known or update.learn(update.load(call.store))
    return update.pruned(result)


@final
@dataclass(frozen=True)
class _FolderUpdate:
    """The images of one call, ready to learn."""

    call: ResolvedCall
    folder: UpdateFolder
    progress: Progress

    @cached_property
    def _given(self) -> dict[str, Any]:
        folder, validation = self.folder, None
        if folder.test_images is not None:
            validation = (folder.test_images, folder.test_labels)
        return {"images": folder.images, "labels": folder.labels, "validation": validation}

    def notes(self) -> Iterator[GraceWarning]:
        """Yield a warning of everything that is left out or has no effect."""
        yield from map(GraceWarning, self.folder.notes)
        settings, labels = self.call.wanted, self.folder.test_labels
        wanted = settings.memory.validation
        most = max(Counter(labels).values(), default=0)
        if most > wanted:
            yield GraceWarning(
                f"of the test images only {wanted} of each class are used; '{labels[0]}' and "
                f"others have up to {most}: set memory.validation={most}"
            )
        if self.call.options.limits.over(settings.gate).given and not wanted:
            yield GraceWarning(
                "no images are held out: every update is accepted, whatever it costs: hold some "
                f"out by memory.validation={HELD_OUT}"
            )

    def create(self) -> Learner:
        """Create a learner for the images, which are checked before."""
        shape = self.folder.images.shape
        check_input(**self._given, shape=shape, limits=self.call.options.limits)
        return Learner.create(
            self.call.wanted, shape=shape, directory=self.call.model, progress=self.progress
        )

    def load(self, store: ModelStore) -> Learner:
        """Load the learner that already exists, with the settings that the call asks for."""
        wanted = self.call.wanted
        saved = carried_out_here(store.settings(), None).engine
        engine = self.call.requested.engine(wanted, saved)
        learner = Learner.load(store.path, engine=engine, progress=self.progress)
        learner.adopt(wanted.model_copy(update={"engine": learner.settings.engine}))
        return learner

    def learn(self, learner: Learner) -> LearnResult:
        """Teach a learner the images."""
        store = learner.home
        assert store is not None
        before, numbers, options = store.current(), store.numbers(), self.call.options
        for note in self._notes_on(learner, store):
            warnings.warn(note, stacklevel=4)
        self.progress.update_started(sorted(set(self.folder.labels) - set(learner.class_names)))
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

    def _notes_on(self, learner: Learner, store: ModelStore) -> Iterator[GraceWarning]:
        """Yield warnings of limits too fine to judge by, and of images that are known already."""
        limits = self.call.options.limits.over(learner.settings.gate)
        known = set(range(len(learner.class_names))) - learner.forgotten
        counts = [learner.held_out.count(index) for index in sorted(known)]
        yield from too_fine(limits, [count for count in counts if count])
        if self.call.options.again:
            return
        given, state = set(self.folder.labels), learner.model.state
        others = [] if store.pending() else self._learnt_before(store)
        if others and not any(
            (made.parent, made.changed) == (state.version, state.changed)
            and accepts(made.history[-1].accuracy, limits) == made.history[-1].accepted
            for made in others
        ):
            yield _note_on(others[0], store)
        again = [index for index, name in enumerate(learner.class_names) if name in given]
        images = self.folder.images
        num = num_kept(images, again, learner.held_out, learner.method.memory) if again else 0
        if num:
            what = f"the model keeps {num} of these {counted(len(images), 'image')} already"
            yield GraceWarning(f"{what}: remove them, or they are kept twice")

    def _learnt_before(self, store: ModelStore) -> list[Document]:
        """Return the versions that have learnt these images and know their classes, newest first.

        A class that was forgotten since then may be learnt again.
        """
        labels, shape = set(self.folder.labels), store.creation.shape
        digest = check_input(**self._given, shape=shape).digest
        found = store.with_digest(digest)
        return [made for made in found if labels <= set(made.live_class_names)]

    def known_already(self, store: ModelStore) -> LearnResult | None:
        """Return the version in use, or one that it was made from, if that learnt these images.

        Warns:
            GraceWarning: settings were asked for, which therefore do not change.
        """
        number = store.current()
        if self.call.options.again or number is None:
            return None
        learnt = {made.number: made for made in self._learnt_before(store)}
        if not set(self.folder.labels) <= set(store.document(number).live_class_names):
            return None
        known = next((learnt[own] for own in _lineage(store, number) if own in learnt), None)
        if known is None:
            return None
        changes = differences(store.settings(), self.call.wanted, leave_out=("engine",))
        idle = [c for c in changes if not is_pace(c.path) and not is_limit(c.path)]
        if idle:
            texts = shlex.join(f"{change.path}={change.after}" for change in idle)
            warnings.warn(
                "these images were learnt already, so that no setting changes: 'grace set "
                f"{shlex.quote(str(store.path))} {texts}' changes it",
                GraceWarning,
                stacklevel=4,
            )
        return self._result(store, known, number, is_new=False)

    def pruned(self, result: LearnResult) -> LearnResult:
        """Remove the oldest versions beyond ``max_disk_mb``; return the result with their numbers.

        Warns:
            GraceWarning: what must stay takes more.
        """
        most = self.call.options.max_disk_mb
        if most is None:
            return result
        store = ModelStore.open(result.model)
        gone = store.prune(max_mb=most)
        left = bytes_of(store.documents())
        if left > most * 1_000_000:
            warnings.warn(
                f"what must stay takes {in_bytes(left)}, more than the {most:g} MB for all "
                "versions (--max-disk-mb)",
                GraceWarning,
                stacklevel=4,
            )
        return replace(result, pruned=gone)

    def _result(
        self, store: ModelStore, document: Document, was_in_use: int | None, *, is_new: bool
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


def _lineage(store: ModelStore, number: int) -> Iterator[int]:
    """Yield the number of a version and of those it was made from, as far as they can be read."""
    numbers, parent = set(store.numbers()), number
    while parent in numbers:
        numbers.discard(parent)  # A forged document could name itself as its parent.
        yield parent
        try:
            parent = store.document(parent).parent or 0
        except DamagedError:
            return


def _note_on(other: Document, store: ModelStore) -> GraceWarning:
    """Return a warning that another version has learnt the images, and how to return to it."""
    came = "as the first one" if other.parent is None else f"after version {other.parent}"
    back = f"'grace rollback {shlex.quote(str(store.path))} {other.number}'"
    now = f"was rejected: {back} puts it in use"
    if other.status == "accepted":
        now = f"is not in use: {back} returns to it"
    return GraceWarning(
        f"version {other.number} has learnt these images already, {came}, and {now}"
    )
