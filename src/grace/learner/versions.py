"""The versions of a model in its home: save, load, learn, roll back."""

from contextlib import suppress
from pathlib import Path
from typing import Literal, Self, final

from grace.base.errors import GraceError
from grace.engine.progress import Progress
from grace.learner import saving, update
from grace.learner.admit import UpdateInput
from grace.learner.document import Document, Predictor, UpdateRecord
from grace.learner.gate import accepts
from grace.learner.model import Model
from grace.learner.model_state import HeldOut
from grace.learner.setting_changes import lasting
from grace.learner.store import ModelStore, to_drop
from grace.settings.experiment import EngineSettings


@final
class Versions:
    """A model and the home that keeps its versions.

    Args:
        model: the model in memory.
        store: its home.
    """

    def __init__(self, model: Model, store: ModelStore) -> None:
        self.model = model
        self.store = store

    @classmethod
    def create(cls, model: Model, directory: Path) -> Self:
        """Create a home for a model.

        Raises:
            GraceError: if the directory exists already.
        """
        return cls(model, ModelStore.create(directory, model.creation))

    @classmethod
    def saved(cls, model: Model, directory: Path) -> Self:
        """Create a home for a model that has learnt something, and save it as version 1.

        Raises:
            GraceError: if the directory exists already.
        """
        versions = cls.create(model, directory)
        with versions.store.changing():
            versions.add(accepted=True, digest=None)
        return versions

    @classmethod
    def load_home(
        cls,
        store: ModelStore,
        version: int | None,
        engine: EngineSettings | None,
        progress: Progress | None,
    ) -> Self:
        """Load a model from its home; it raises what ``Learner.load`` raises.

        Args:
            store: the home.
            version: number of the version; ``None``: the one in use.
            engine: settings of this machine; ``None``: the saved ones, as far as it can.
            progress: receives the events of the work.
        """
        number = store.current() if version is None else version
        saved = store.creation if number is None else store.document(number)
        settings = saving.carried_out_here(saved.settings, engine)
        with saving.naming_source(saved, store):
            model = Model(settings, saved.shape, saved.mean, saved.std, progress, is_saved=True)
        versions = cls(model, store)
        if isinstance(saved, Document):
            versions.load(saved)
        return versions

    def add(self, *, accepted: bool, digest: str | None) -> None:
        """Save the model as the next version.

        Args:
            accepted: put the version in use.
            digest: digest of the images of its last update.
        """
        document = self._document("accepted" if accepted else "rejected", digest)
        self.store.write(document)
        if accepted:
            self.store.make_current(document.number)
        self.store.note_versions()
        self._now(document)

    def _document(self, status: Literal["accepted", "rejected"], digest: str | None) -> Document:
        """Store the model's objects, and return the document of the next version."""
        document = saving.to_document(
            self.model.creation,
            self.model.state,
            self.store.put,
            number=self.store.next_number(),
            status=status,
            digest=digest,
        )
        ceiling = self.model.ceiling
        assert not ceiling or document.num_bytes <= ceiling.num_bytes
        return document

    def _now(self, document: Document) -> None:
        """Note that the model is this version now."""
        self.model.state.version = document.number
        if document.status == "accepted":
            self.model.state.changed = ()

    def add_settings(self) -> None:
        """Save a model that differs from the version in use by its settings; put it in use.

        Raises:
            GraceError: if the version in use has changed, or an update was interrupted.
        """
        with self.store.changing():
            self._refuse_stale()
            if self.store.pending():
                raise GraceError(
                    f"an update of '{self.store.path}' was interrupted",
                    f"run it again to finish it, or {to_drop(self.store.path)}",
                )
            state = self.model.state
            assert state.version is not None
            digest = self.store.document(state.version).digest
            document = self._document("accepted", digest)
            self.store.add_settings(document)
            self._now(document)

    def learn(self, given: UpdateInput, *, again: bool = False) -> UpdateRecord:
        """Learn one update and save it; an interrupted one goes on where it stopped.

        Args:
            given: the images, checked.
            again: learn the images again even if this was the last update.
        """
        state = self.model.state
        with self.store.changing():
            self._refuse_stale()
            repeats = again and not self.store.has_saved(given.digest)
            done = None if repeats else self._done_already(given)
            if done is None:
                journal = self.store.begin(state.version, given.digest, lasting(state.changed))

                def save(update: UpdateRecord) -> None:
                    self.add(accepted=update.accepted, digest=given.digest)

                try:
                    done = update.learn(self.model, given, journal, save)
                except GraceError:
                    self.store.discard()  # Going on would fail in the same way.
                    raise
            with suppress(OSError):  # The update is saved; the next change removes what is left.
                self.store.discard()
                self.store.remove_unused()
        return done

    def load(self, document: Document) -> None:
        """Load a version into the model; if that fails, change nothing.

        Raises:
            GraceError: if all its classes were forgotten, or its images have another shape.
            DamagedError: if a file is damaged.
        """
        model, store = self.model, self.store
        if not document.live_class_names:
            raise GraceError(
                f"all classes of version {document.number} of '{store.path}' were forgotten",
                "choose another version",
            )
        if document.shape != model.shape:
            raise GraceError(
                f"version {document.number} of '{store.path}' takes images of shape "
                f"{document.shape}, this learner those of {model.shape}"
            )
        before = model.state.copy()
        try:
            state = model.state
            state.held_out = HeldOut()
            with saving.naming_source(document, store):
                recogniser = saving.restore(document, store, state.method, state.held_out)
            state.class_names = list(document.class_names)
            state.history = list(document.history)
            state.predictor = document.history[-1].predictor or Predictor()
            state.forgotten = set(document.forgotten)
            model.mask_forgotten()
            if recogniser is None:
                model.calibrate(document.unknown_score)
            else:
                state.recogniser = recogniser
        except BaseException:
            model.state = before
            raise
        model.state.version, model.state.changed = document.number, ()

    def rollback(self, number: int) -> None:
        """Load another version and put it in use.

        Raises:
            GraceError: if there is no such version.
        """
        with self.store.changing():
            self.load(self.store.document(number))
            self.store.roll_back(number)

    def _refuse_stale(self) -> None:
        """Refuse to go on if the version in use is no longer the one in memory."""
        number, state = self.store.current(), self.model.state
        forgotten = set() if number is None else set(self.store.document(number).forgotten)
        if (number, forgotten) != (state.version, state.forgotten):
            raise GraceError(
                f"'{self.store.path}' has changed since this learner was loaded", "load it again"
            )

    def _done_already(self, given: UpdateInput) -> UpdateRecord | None:
        """Return this update if a version holds it already; an accepted one is put in use again.

        It is the version in use, or one that was made from it: by a process that was killed, or
        before a rollback. A version made with other settings counts as another update.
        """
        version = self.model.state.version
        for document in self.store.with_digest(given.digest):
            if not set(given.labels) <= set(document.live_class_names):
                continue  # One of its classes was forgotten since then.
            update = document.history[-1]
            if document.number == version:
                return update
            same = (document.parent, document.changed) == (version, self.model.state.changed)
            if same and accepts(update.accuracy, given.limits) == update.accepted:
                if document.status == "accepted":
                    if self.store.has_saved(given.digest):  # By a process that was killed.
                        self.store.make_current(document.number)
                    else:
                        self.store.roll_back(document.number)
                    self.load(document)
                return update
        return None
