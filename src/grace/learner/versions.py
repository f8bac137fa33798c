"""The versions of a model in its home: load, save, learn."""

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from grace.base.errors import DamagedError, GraceError
from grace.base.machine import memory_bytes
from grace.base.words import one_line
from grace.data.images import Images
from grace.data.memory import BYTES_PER_IMAGE
from grace.engine.progress import Progress
from grace.engine.ranks import Ranks
from grace.learner import update
from grace.learner.admit import UpdateInput
from grace.learner.calibration import Recogniser
from grace.learner.document import Creation, Document, ImagesRef, UpdateRecord
from grace.learner.gate import accepts
from grace.learner.model import Model
from grace.learner.model_state import to_document
from grace.learner.setting_changes import lasting
from grace.learner.store import OTHER_VERSION, ModelStore, to_drop
from grace.methods.saved import MAX_FEATURES, read_images
from grace.methods.state import MethodState
from grace.settings.experiment import EngineSettings, ExperimentSettings


def load(
    store: ModelStore,
    version: int | None = None,
    engine: EngineSettings | None = None,
    progress: Progress | None = None,
    ranks: Ranks | None = None,
) -> Model:
    """Load a version of a model.

    Args:
        store: its home.
        version: number of the version; ``None``: the one in use, or what the learner was created
            with if it has learnt nothing.
        engine: settings of this machine; ``None``: the saved ones, as far as it can.
        progress: receives the events of the work.
        ranks: the processes that train together.

    Raises:
        GraceError: if there is no such version, or all its classes were forgotten.
        DamagedError: if its files cannot be trusted.
    """
    number = store.current() if version is None else version
    saved = store.creation if number is None else store.document(number)
    with _naming(saved, store):
        model = Model(
            carried_out_here(saved.settings, engine),
            saved.shape,
            saved.mean,
            saved.std,
            progress,
            is_saved=True,
            ranks=ranks,
        )
        if isinstance(saved, Document):
            _restore(model, saved, store)
    return model


def _restore(model: Model, document: Document, store: ModelStore) -> None:
    """Give a fresh model what a version holds."""
    if not document.live_class_names:
        raise GraceError("all its classes were forgotten", "choose another version")
    _refuse_too_large(document)
    state, method, num_classes = model.state, model.state.method, len(document.class_names)
    # By their headers first: a forged object that nobody needs costs no memory.
    outlines = {name: store.outline(ref, name) for name, ref in document.parts.items()}
    method.state.refuse_unlike(outlines, num_classes)
    parts = {name: store.read(ref, name) for name, ref in document.parts.items()}
    method.state.restore(MethodState(document.values, parts), num_classes)
    method.state.refuse_unfit(document.shape)
    features: list[tuple[Images, Tensor]] = []

    def images_of(kept: Mapping[int, ImagesRef], what: str) -> Iterator[tuple[int, Images]]:
        for index, ref in kept.items():
            name = f"{what} of class {index}"
            images, own = read_images(store.read(ref, name), document.shape, name, ref.num)
            if own is not None:
                if method.features is None or own.shape[1] != method.network.feature_dim:
                    raise DamagedError(f"the {name} have features that the network has not")
                features.append((images, own))
            yield index, images

    exemplars = dict(images_of(document.exemplars, "exemplars"))
    method.memory.restore(exemplars, document.original_counts)
    for index, images in images_of(document.validation, "held-out images"):
        state.held_out.add(index, images)
    if method.features is not None:
        method.features.restore(features)
    state.class_names, state.history = list(document.class_names), list(document.history)
    state.forgotten = set(document.forgotten)
    state.temperature = document.history[-1].temperature
    state.version = document.number
    model.mask_forgotten()
    if document.calibration is None:
        model.calibrate()
    else:
        state.recogniser = _recogniser(model, document, store)


def _recogniser(model: Model, document: Document, store: ModelStore) -> Recogniser:
    assert document.calibration is not None
    found = store.outline(document.calibration, "calibration").get("familiarities")
    if found is None or found.numel() > len(model.state.held_out):
        raise DamagedError("the calibration is damaged: it holds no scores of held-out images")
    tensors = store.read(document.calibration, "calibration")
    width = model.state.method.network.feature_dim
    return Recogniser.saved(tensors, width)


def _refuse_too_large(document: Document) -> None:
    """Refuse a version that is too large for this machine, or keeps more images than it learnt."""
    sizes, memory = [ref.bytes for ref in document.refs], document.settings.memory
    kept = [*document.exemplars.items(), *document.validation.items()]
    image_bytes, most = math.prod(document.shape), memory_bytes()
    # The weights exist twice, as read and in their modules, beside the file being decoded; encoded
    # images are larger in memory.
    needed = sum(sizes) + sum(ref.bytes for ref in document.parts.values())
    needed += max(sizes, default=0) + image_bytes * sum(ref.num for _, ref in kept)
    if most is not None and needed > 3 * most // 4:
        raise DamagedError(
            f"it says that it has {sum(sizes)} bytes, too many for the memory of this machine: it "
            "is damaged, or needs a larger one"
        )
    # A header has 500 bytes at most.
    image_bytes += BYTES_PER_IMAGE
    image_bytes += 0 if document.settings.method.traits.trains_backbone else 2 * MAX_FEATURES
    for index, ref in kept:
        if ref.bytes > 500 + image_bytes * ref.num:
            raise DamagedError(f"{ref.num} images of class {index} take {ref.bytes} bytes")
    num = sum(ref.num for ref in document.exemplars.values())
    if memory.size is not None and memory.per_class is None and num > memory.size:
        raise DamagedError(f"it keeps {num} exemplars, and memory.size is {memory.size}")


@contextmanager
def _naming(saved: Document | Creation, store: ModelStore) -> Iterator[None]:
    """Prefix errors raised while loading with the version and path that they concern."""
    try:
        yield
    except GraceError as error:
        which = f"version {saved.number} of " if isinstance(saved, Document) else ""
        what = f"{which}'{store.path}' cannot be brought back: "
        if isinstance(error, DamagedError):
            raise DamagedError(f"{what}{error}", OTHER_VERSION) from error
        raise GraceError(one_line(f"{what}{error}")) from error


def carried_out_here(
    settings: ExperimentSettings, engine: EngineSettings | None
) -> ExperimentSettings:
    """Return settings with the given engine, or with the saved one adapted to this machine."""
    if engine is None:
        saved, cores = settings.engine, os.cpu_count() or 1
        no_cuda = not torch.cuda.is_available()
        # The CPU has no float16, which a saved precision asks for in training only.
        halved = saved.precision == "float16" and no_cuda
        engine = saved.model_copy(
            update={
                "device": "auto" if saved.device == "cuda" and no_cuda else saved.device,
                "precision": "float32" if halved else saved.precision,
                "threads": min(saved.threads, cores) if saved.threads else None,
                "eval_batch_size": min(saved.eval_batch_size, 512),
            }
        )
    return settings.model_copy(update={"engine": engine})


def save(
    model: Model,
    store: ModelStore,
    *,
    digest: str | None,
    accepted: bool = True,
    is_set: bool = False,
) -> None:
    """Save a model as the next version; ``store.changing`` lasts.

    Args:
        model: it has learnt something.
        store: its home.
        digest: digest of the images of its last update; ``None``: it was not learnt here.
        accepted: put the version in use.
        is_set: it differs from the version in use by its settings alone.
    """
    document = to_document(
        model.creation,
        model.state,
        store.put,
        number=store.next_number(),
        status="accepted" if accepted else "rejected",
        digest=digest,
    )
    assert not model.ceiling or document.num_bytes <= model.ceiling.num_bytes
    store.add(document, is_set=is_set)
    model.state.version = document.number
    if accepted:
        model.state.changed = ()


def save_settings(model: Model, store: ModelStore) -> None:
    """Save a model that differs from the version in use by its settings; put it in use.

    Raises:
        GraceError: if the version in use has changed, or an update was interrupted.
    """
    with store.changing():
        _refuse_stale(model, store)
        if store.pending():
            raise GraceError(
                f"an update of '{store.path}' was interrupted",
                f"run it again to finish it, or {to_drop(store.path)}",
            )
        assert model.state.version is not None
        save(model, store, digest=store.document(model.state.version).digest, is_set=True)


def learn(
    model: Model, store: ModelStore, given: UpdateInput, *, again: bool = False
) -> UpdateRecord:
    """Learn one update and save it; an interrupted one goes on where it stopped.

    Args:
        model: learns the images; it is the version in use.
        store: its home.
        given: the images, checked.
        again: learn the images again even if this was the last update.
    """
    with store.changing():
        _refuse_stale(model, store)
        repeats = again and not store.has_saved(given.digest)
        done = None if repeats else _done_already(model, store, given)
        if done is None:
            journal = store.begin(model.state.version, given.digest, lasting(model.state.changed))

            def save_it(record: UpdateRecord) -> None:
                save(model, store, digest=given.digest, accepted=record.accepted)

            try:
                done = update.learn(model, given, journal, save_it)
            except GraceError:
                store.discard()  # Going on would fail in the same way.
                raise
        with suppress(OSError):  # The update is saved; the next change removes what is left.
            store.discard()
            store.remove_unused()
    return done


def _refuse_stale(model: Model, store: ModelStore) -> None:
    """Refuse to go on if the version in use is no longer the one in memory."""
    number = store.current()
    forgotten = set() if number is None else set(store.document(number).forgotten)
    if (number, forgotten) != (model.state.version, model.state.forgotten):
        raise GraceError(
            f"'{store.path}' has changed since this learner was loaded", "load it again"
        )


def _done_already(model: Model, store: ModelStore, given: UpdateInput) -> UpdateRecord | None:
    """Return this update if a version holds it already; an accepted one is put in use again.

    It is the version in use, or one that was made from it: by a process that was killed, or before
    a rollback. A version made with other settings counts as another update.
    """
    state = model.state
    for document in store.with_digest(given.digest):
        if not set(given.labels) <= set(document.live_class_names):
            continue  # One of its classes was forgotten since then.
        record = document.history[-1]
        if document.number == state.version:
            return record
        same = (document.parent, document.changed) == (state.version, state.changed)
        if same and accepts(record.accuracy, given.gate) == record.accepted:
            if document.status == "accepted":
                if store.has_saved(given.digest):  # By a process that was killed.
                    store.make_current(document.number)
                else:
                    store.roll_back(document.number)
                ranks, engine = model.trainer.ranks, model.settings.engine
                model.state = load(store, document.number, engine, ranks=ranks).state
            return record
    return None
