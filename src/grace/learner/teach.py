"""Teach a learner the images of a folder: read them, then learn what it does not know already."""

import shlex
import warnings
from collections.abc import Sequence
from typing import Any, final

from grace.base.errors import GraceWarning
from grace.base.words import in_bytes
from grace.data.folders import load_update
from grace.engine.progress import Progress, Silence
from grace.learner.adapt import with_settings
from grace.learner.admit import check_input
from grace.learner.call import LearnCall, LearnResult, cleaned_after_failure
from grace.learner.document import Document, portable
from grace.learner.gate import too_fine
from grace.learner.learner import Learner
from grace.learner.recommend import HELD_OUT
from grace.learner.setting_changes import differences, effect
from grace.learner.store import ModelStore, bytes_of
from grace.learner.versions import carried_out_here


def teach(call: LearnCall, progress: Progress | None) -> LearnResult:
    """Carry out a call of ``learn``; errors and warnings as there."""
    progress = progress or Silence()
    progress.waiting("reading")
    update = _FolderUpdate(call, progress)
    before = call.store.current() if call.store else None
    known = update.known_already()
    document, is_new = (known, False) if known else update.learn()
    assert call.model is not None
    store = ModelStore.open(call.model)
    pruned, current = _pruned(store, call.max_disk_mb), store.current()
    assert current is not None
    return LearnResult(
        model=store.path,
        document=document,
        is_new=is_new,
        in_use=current,
        was_in_use=before,
        class_names=update.class_names,
        pruned=pruned,
        chosen=call.chosen,
    )


def _pruned(store: ModelStore, most: float | None) -> Sequence[int]:
    """Remove the oldest versions beyond so many megabytes; return their numbers."""
    if most is None:
        return ()
    gone = store.prune(max_mb=most)
    left = bytes_of(store.survey().documents)
    if left > most * 1_000_000:
        _warn(
            f"what must stay takes {in_bytes(left)}, more than the {most:g} MB for all versions "
            "(--max-disk-mb)"
        )
    return gone


def _warn(text: str) -> None:
    warnings.warn(text, GraceWarning, stacklevel=6)


@final
class _FolderUpdate:
    """The images of one call, ready to learn; what is left out of them is warned about."""

    def __init__(self, call: LearnCall, progress: Progress) -> None:
        self._call = call
        self._progress = progress
        folder = load_update(call.images, call.reading)
        self.class_names = list(folder.class_names)
        tests = (folder.test.images, folder.classes_of(folder.test))
        self._given: dict[str, Any] = {
            "images": folder.train.images,
            "labels": folder.classes_of(folder.train),
            "validation": tests if len(folder.test) else None,
        }
        for note in folder.notes:
            _warn(note)
        has_limits = any(limit is not None for _, limit in call.gate)
        if has_limits and not call.wanted.memory.validation:
            _warn(
                "no images are held out, so that every update is accepted: hold some out by "
                f"memory.validation={HELD_OUT}"
            )

    def known_already(self) -> Document | None:
        """Return the version in use, or one that it was made from, if that learnt these images."""
        store = self._call.store
        number = store.current() if store else None
        if self._call.again or store is None or number is None:
            return None
        in_use = store.document(number)
        if not set(self.class_names) <= set(in_use.live_class_names):
            return None
        held = [update.past for update in in_use.history]
        digest = check_input(**self._given, shape=store.creation.shape).digest
        # A class that was forgotten since then may be learnt again.
        learnt = (
            own
            for own in store.with_digest(digest)
            if set(self.class_names) <= set(own.live_class_names) and own.history[-1].past in held
        )
        known = next(learnt, None)
        if known is None:
            return None
        changes = differences(store.settings(), self._call.wanted)
        idle = [own for own in changes if effect(own.path) == "learning"]
        if idle:
            texts = shlex.join(f"{change.path}={change.after}" for change in idle)
            _warn(
                "these images were learnt already, so that no setting changes: 'grace set "
                f"{shlex.quote(str(store.path))} {texts}' changes it"
            )
        return known

    def learn(self) -> tuple[Document, bool]:
        """Create the learner, or load it with the settings that the call asks for; teach it.

        Returns:
            The version that holds the images, and ``True`` if it is new.
        """
        call = self._call
        learner = self._created() if call.store is None else self._loaded(call.store)
        store = learner.home
        assert store is not None
        numbers = store.numbers()
        known, held_out = set(learner.class_names), learner.held_out
        live = map(learner.class_names.index, learner.model.state.live_class_names)
        for text in too_fine(call.gate, [count for i in live if (count := held_out.count(i))]):
            _warn(text)
        self._progress.update_started([own for own in self.class_names if own not in known])
        with cleaned_after_failure(store):
            update = learner.update(**self._given, max_drop=call.max_drop, again=call.again)
        document = store.document(store.numbers()[-1])
        is_new = document.number not in numbers
        if not is_new:
            # A version between others may be the one that answers.
            held = (made for made in store.survey().documents if made.history[-1] == update)
            document = next(held, document)
        return document, is_new

    def _created(self) -> Learner:
        """Create a learner for the images, which are checked before."""
        shape = self._given["images"].shape
        check_input(**self._given, shape=shape)
        return Learner.create(
            self._call.wanted, shape=shape, directory=self._call.model, progress=self._progress
        )

    def _loaded(self, store: ModelStore) -> Learner:
        saved, wanted = store.settings().engine, self._call.wanted
        # What is saved of the engine is adapted to this machine, what is given is not.
        given = {name: own for name, own in wanted.engine if own != getattr(saved, name)}
        here = carried_out_here(store.settings(), None).engine.model_copy(update=given)
        learner = Learner.load(store.path, engine=here, progress=self._progress)
        wanted = wanted.model_copy(update={"engine": here})
        if portable(wanted) != portable(learner.settings):
            learner.model = with_settings(learner.model, wanted)
        return learner
